// SPDX-License-Identifier: Apache-2.0
//! Tests of several pods that request one device, and of names on the host that are taken.

use crate::{
    leases::Leases,
    node::{Node, configure, host_change, name, settle},
};
use fake_kernel::{Nic, Verdict, World};
use integration::wait::TIMEOUT;
use rdma_cni::{
    reply,
    verb::{add, gc},
};
use rdma_netns::{Kernel as _, LinkChange, NetnsSide, Op, RdmaMode};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet, fs, os::unix::fs::MetadataExt as _, sync::mpsc, thread, time::Duration,
};

#[test]
fn a_device_has_one_holder() {
    for config in [Node::two_rails, Node::one_rail] {
        let node = Node::new(RdmaMode::Exclusive);
        let config = config(&node);
        let (first, second) = (node.pod("a"), node.pod("b"));
        let before = node.snapshot();
        node.add(&first, &config).must_succeed();
        let held = node.snapshot();
        let message = node.add(&second, &config).must_fail(101);
        assert!(message.contains("container a"), "{message}");
        assert_eq!(node.snapshot(), held);
        let message = node.add(&first, &config).must_fail(101);
        assert!(message.contains("attached already"), "{message}");
        node.del(&second, &config).must_succeed();
        assert_eq!(node.snapshot(), held);
        node.del(&first, &config).must_succeed();
        node.add(&second, &config).must_succeed();
        node.del(&second, &config).must_succeed();
        node.must_be(&before, "after both");
    }
}

#[test]
fn a_late_del_leaves_the_new_holder_alone() {
    for config in [Node::two_rails, Node::one_rail] {
        let node = Node::new(RdmaMode::Exclusive);
        let config = config(&node);
        let other = node.pod("b");
        let before = node.snapshot();
        let old = node.pod("a");
        node.add(&old, &config).must_succeed();
        node.kernel.with(|world| world.unmount(&old.netns));
        node.add(&other, &config).must_succeed();
        let held = node.snapshot();
        node.del(&old, &config).must_succeed();
        assert_eq!(
            node.snapshot(),
            held,
            "{:?}",
            held.differences(&node.snapshot())
        );
        node.del(&other, &config).must_succeed();
        node.must_be(&before, "after both");
    }
}

/// The old pod's DEL was killed when its device was on the host, but not restored. The next ADD restores the device
/// first, although the old pod's namespace still exists.
#[test]
fn a_killed_del_is_brought_to_its_end_by_the_next_add() {
    for config in [Node::two_rails, Node::one_rail] {
        let node = Node::new(RdmaMode::Exclusive);
        let config = config(&node);
        let (old, other) = (node.pod("a"), node.pod("b"));
        let before = node.snapshot();
        node.add(&old, &config).must_succeed();
        node.script(|number| {
            if number == 5 {
                Verdict::DieBefore
            } else {
                Verdict::Proceed
            }
        });
        node.del(&old, &config);
        node.kernel.begin();
        node.add(&other, &config).must_succeed();
        let held = node.snapshot();
        node.del(&old, &config).must_succeed();
        assert_eq!(
            before.differences(&held),
            before.differences(&node.snapshot())
        );
        node.del(&other, &config).must_succeed();
        node.must_be(&before, "after both");
    }
}

#[test]
fn a_name_that_is_taken_on_the_host_is_waited_for() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let before = node.snapshot();
    node.add(&pod, &node.two_rails()).must_succeed();
    node.kernel
        .with(|world| world.plug(Nic::virtual_link("eth2", "dummy")));
    let message = node.del(&pod, &node.two_rails()).must_fail(107);
    assert!(message.contains("eth2"), "{message}");
    let netns = node.netns(&pod);
    let intact = node
        .kernel
        .with(|world| world.link(netns, "rdma0").is_some_and(|link| link.up));
    assert!(intact, "{:?}", node.snapshot());
    let rename = host_change("eth2", LinkChange::Rename(name("dummy0")));
    node.change(None, &rename);
    node.del(&pod, &node.two_rails()).must_succeed();
    let differences = before.differences(&node.snapshot());
    assert!(
        differences.iter().all(|line| line.contains("dummy0")),
        "{differences:#?}"
    );
    assert_eq!(node.records(), [] as [&str; 0]);
}

#[test]
fn an_alternative_name_that_is_taken_keeps_nothing_away() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    node.add(&pod, &node.one_rail()).must_succeed();
    node.kernel
        .with(|world| world.plug(Nic::virtual_link("enp2s0v0", "dummy")));
    node.del(&pod, &node.one_rail()).must_succeed();
    assert_eq!(node.records(), [] as [&str; 0]);
    node.kernel.with(|world| {
        let link = world.link(fake_kernel::world::HOST, "eth2").unwrap();
        assert!(link.up && link.alt_names.is_empty(), "{link:?}");
    });
}

#[test]
fn a_name_that_is_taken_in_the_pod_is_refused_before_any_change() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    node.kernel
        .with(|world| world.plug(Nic::virtual_link("rdma1", "dummy")));
    let (from, to) = (NetnsSide::Host, NetnsSide::Pod);
    let into_pod = Op::MoveLink {
        link: name("rdma1"),
        from,
        to,
        name: name("rdma1"),
    };
    node.change(Some(&pod), &into_pod);
    let before = node.snapshot();
    node.kernel.begin();
    node.add(&pod, &node.two_rails()).must_fail(7);
    assert!(node.kernel.journal().is_empty());
    node.must_be(&before, "refused");
}

#[test]
fn a_namespace_that_is_still_dying_is_waited_for() {
    let node = Node::new(RdmaMode::Exclusive);
    let before = node.snapshot();
    let pod = node.pod("a");
    node.add(&pod, &node.two_rails()).must_succeed();
    let descriptor = node.kernel.open_pod(&pod.netns).unwrap();
    node.kernel.with(|world| world.unmount(&pod.netns));
    let mut descriptor = Some(descriptor);
    node.kernel.meanwhile(move |pause| {
        if pause == 3 {
            descriptor.take();
        }
    });
    node.del(&pod, &node.two_rails()).must_succeed();
    node.must_be(&before, "after the namespace's end");
}

/// DEL releases the node's lock while it waits for a dying namespace. Another process then holds the lock for longer
/// than the verb may wait. One rail is already on the host, so the error must not say that DEL changed nothing.
#[test]
fn a_lock_that_is_not_had_again_is_no_sign_that_nothing_was_changed() {
    let node = Node::new(RdmaMode::Exclusive);
    let before = node.snapshot();
    let pod = node.pod("a");
    node.add(&pod, &node.two_rails()).must_succeed();
    // one rail is already on the host, and a process keeps the namespace with the other rail open
    let (at, link) = (NetnsSide::Pod, name("rdma0"));
    let (from, to, netdev) = (NetnsSide::Pod, NetnsSide::Host, name("eth2"));
    for op in [
        Op::Link {
            at,
            link: link.clone(),
            change: LinkChange::Up(false),
        },
        Op::MoveRdma {
            device: "mlx5_2".into(),
            from,
            to,
        },
        Op::MoveLink {
            link,
            from,
            to,
            name: netdev,
        },
    ] {
        node.change(Some(&pod), &op);
    }
    let descriptor = node.kernel.open_pod(&pod.netns).unwrap();
    node.kernel.with(|world| world.unmount(&pod.netns));
    let path = node.state.path().join("state/lock");
    thread::scope(|scope| {
        let path = &path;
        node.kernel.begin();
        let (sender, receiver) = std::sync::mpsc::channel();
        node.kernel.intercept(move |_, _| {
            let _ = sender.send(());
            Verdict::Proceed
        });
        let (answered, has_answered) = mpsc::channel::<()>();
        scope.spawn(move || {
            receiver.recv_timeout(TIMEOUT).unwrap();
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.lock().unwrap();
            // the sender is dropped when the verb has answered
            let _ = has_answered.recv_timeout(TIMEOUT);
        });
        let (code, message) = node.del_within(&pod, &node.two_rails(), Duration::ZERO);
        drop(answered);
        assert_eq!(code, 11, "{message}");
        assert!(!message.contains("nothing was changed"), "{message}");
        assert!(message.contains("try again"), "{message}");
    });
    node.kernel.begin();
    drop(descriptor);
    node.del(&pod, &node.two_rails()).must_succeed();
    node.must_be(&before, "tried again");
}

/// Holds the node's lock for longer than a verb's minimum time limit for a lock.
fn another_moves(node: &Node) -> thread::JoinHandle<()> {
    let path = node.state.path().join("state/lock");
    let file = fs::File::options().write(true).open(path).unwrap();
    file.lock().unwrap();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(1500));
        drop(file);
    })
}

/// ADD has used all its time, for example because of a slow IPAM plugin.
#[test]
fn an_add_that_fails_late_is_undone_while_other_pods_come_and_go() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = node.pod("a");
    let config = leases.config(json!({ "devices": [{ "netdev": "bond*" }] }));
    let before = node.snapshot();
    node.kernel.begin();
    let (sender, receiver) = mpsc::channel();
    let (answer, answered) = mpsc::channel();
    node.kernel.intercept(move |_, step| match step.op {
        Op::Link {
            change: LinkChange::AddAddress(_),
            ..
        } => {
            sender.send(()).unwrap();
            answered.recv_timeout(TIMEOUT).unwrap();
            Verdict::Refuse(nix::errno::Errno::EINVAL)
        }
        _ => Verdict::Proceed,
    });
    let error = thread::scope(|scope| {
        scope.spawn(move || {
            receiver.recv_timeout(TIMEOUT).unwrap();
            let other = another_moves(node);
            answer.send(()).unwrap();
            other.join().unwrap();
        });
        node.within(Duration::ZERO, "ADD", Some(&pod), &config, |node| {
            add::add(node).err().expect("a failure")
        })
    });
    assert_eq!(reply::code(&error), 106, "{error}");
    node.must_be(&before, "undone");
}

/// An attachment gets time for its locks even if GC has used all its time.
#[test]
fn a_late_gc_restores_devices() {
    let node = Node::new(RdmaMode::Exclusive);
    let before = node.snapshot();
    let pod = node.pod("a");
    node.add(&pod, &node.two_rails()).must_succeed();
    let config = Node::of_gc(&[], &node.two_rails());
    let other = another_moves(&node);
    let done = node.within(Duration::ZERO, "GC", None, &config, gc::gc);
    assert!(done.is_ok(), "{}", done.unwrap_err());
    other.join().unwrap();
    node.kernel.with(|world| world.unmount(&pod.netns));
    node.must_be(&before, "after GC");
}

/// Each write of the record waits for the disk.
#[test]
fn a_dying_namespace_is_waited_for_without_writing_the_record_each_time() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    node.add(&pod, &node.two_rails()).must_succeed();
    let descriptor = node.kernel.open_pod(&pod.netns).unwrap();
    node.kernel.with(|world| world.unmount(&pod.netns));
    let record = node.record_of(&pod);
    let (sender, versions) = mpsc::channel();
    let mut descriptor = Some(descriptor);
    node.kernel.meanwhile(move |pause| {
        let record = fs::metadata(&record).unwrap();
        let version = (record.ino(), record.mtime(), record.mtime_nsec());
        sender.send(version).unwrap();
        if pause == 10 {
            descriptor.take();
        }
    });
    node.del(&pod, &node.two_rails()).must_succeed();
    let versions: Vec<_> = versions.try_iter().collect();
    assert_eq!(versions.len(), 10);
    let versions: BTreeSet<_> = versions.into_iter().collect();
    // DEL writes the record when it begins, and at most once more
    assert!(versions.len() <= 2, "{versions:?}");
}

#[test]
fn the_path_of_a_dead_namespace_may_lead_to_another_pod() {
    for config in [Node::two_rails, Node::one_rail] {
        let node = Node::new(RdmaMode::Exclusive);
        let config: Value = config(&node);
        let old = node.pod("a");
        node.add(&old, &config).must_succeed();
        node.kernel.with(|world| world.unmount(&old.netns));
        // the new namespace has the same path and the same inode
        node.kernel.with(|world| world.create_namespace(&old.netns));
        let mut new = old.clone();
        new.container = "b".to_owned();
        node.add(&new, &config).must_succeed();
        let held = node.snapshot();
        node.del(&old, &config).must_succeed();
        assert_eq!(node.snapshot(), held);
        node.del(&new, &config).must_succeed();
        assert_eq!(node.records(), [] as [&str; 0]);
    }
}

#[test]
fn the_second_rail_fails() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = node.config(json!({ "devices": [{ "netdev": "eth2" }, { "netdev": "ens2np0" }] }));
    node.kernel.intercept(|_, step| match step.op {
        Op::MoveLink { name, .. } if **name == *"rdma1" => {
            Verdict::Refuse(nix::errno::Errno::EINVAL)
        }
        _ => Verdict::Proceed,
    });
    let message = node.add(&pod, &config).must_fail(106);
    assert!(message.contains("ens2np0"), "{message}");
    node.must_be(&before, "undone");
}

#[test]
fn one_of_two_simultaneous_adds_wins() {
    for _ in 0..100 {
        let node = Node::new(RdmaMode::Exclusive);
        let pods = [node.pod("a"), node.pod("b")];
        let before = node.snapshot();
        let mut codes: Vec<u64> = thread::scope(|scope| {
            let adds = pods.each_ref().map(|pod| {
                let node = &node;
                scope.spawn(move || node.add(pod, &node.two_rails()).code())
            });
            adds.map(|add| add.join().unwrap()).into()
        });
        codes.sort_unstable();
        assert_eq!(codes, [0, 101]);
        thread::scope(|scope| {
            for pod in &pods {
                let node = &node;
                scope.spawn(move || node.del(pod, &node.two_rails()).must_succeed());
            }
        });
        node.must_be(&before, "after both");
    }
}

#[test]
fn many_pods_come_and_go_at_once() {
    let mut world = World::new(Some(RdmaMode::Exclusive));
    for rail in 0..8 {
        let address = format!("0000:01:00.{rail}");
        let (link, rdma) = (format!("eth{rail}"), format!("mlx5_{rail}"));
        world.plug(Nic::physical(&address, &link, &rdma));
        configure(&mut world, &link, rail);
    }
    settle(&mut world);
    let node = Node::with(world);
    let before = node.snapshot().without_numbers();
    thread::scope(|scope| {
        for rail in 0..8 {
            let node = &node;
            scope.spawn(move || {
                let config = node.config(json!({ "deviceID": format!("0000:01:00.{rail}") }));
                for turn in 0..5 {
                    let pod = node.pod(&format!("pod{rail}-{turn}"));
                    node.add(&pod, &config).must_succeed();
                    let side = node
                        .kernel
                        .with(|w| w.place_of_rdma(&format!("mlx5_{rail}")));
                    assert_eq!(side, Some(node.netns(&pod)));
                    if turn % 2 == 0 {
                        node.del(&pod, &config).must_succeed();
                    }
                    node.kernel.with(|world| world.unmount(&pod.netns));
                }
            });
        }
    });
    node.gc(&[], &node.one_rail()).must_succeed();
    let differences = before.differences(&node.snapshot().without_numbers());
    assert!(differences.is_empty(), "{differences:#?}");
    assert_eq!(node.records(), [] as [&str; 0]);
}
