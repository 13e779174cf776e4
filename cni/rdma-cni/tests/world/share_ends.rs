// SPDX-License-Identifier: Apache-2.0
//! Tests of share mode in which ADD or DEL is refused or killed, or the pod's namespace has ended. No child, rule,
//! lease, rails file or record remains.

use crate::{
    leases::{Leases, has_link, link_of, run_named},
    node::{Node, Pod},
};
use fake_kernel::{Snapshot, Verdict};
use nix::errno::Errno;
use rdma_netns::{Child, IpvlanMode, Kernel, LinkChange, MacvlanMode, NetnsSide, Op};
use serde_json::{Value, json};

/// Returns three numbers: the changes of ADD with two bonds, the announcements after them, and the changes of DEL.
fn changes() -> (usize, usize, usize) {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = node.pod("a");
    node.add(&pod, &leases.config(json!({}))).must_succeed();
    let add = node.changes();
    let announcements = node.kernel.journal().len() - add;
    node.kernel.begin();
    node.del(&pod, &leases.config(json!({}))).must_succeed();
    (add, announcements, node.kernel.journal().len())
}

/// At each deletion, the kernel waits until the netdev is unused.
#[test]
fn children_of_several_rails_go_by_one_deletion() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = node.pod("a");
    let config = leases.config(json!({}));
    node.add(&pod, &config).must_succeed();
    node.kernel.begin();
    node.del(&pod, &config).must_succeed();
    let journal = node.kernel.journal();
    let deletions = journal.iter().filter(|op| {
        matches!(
            op,
            Op::Link {
                change: LinkChange::Remove,
                ..
            } | Op::RemoveGroup { .. }
        )
    });
    assert_eq!(deletions.count(), 1, "{journal:?}");
}

#[test]
fn any_change_of_add_is_refused() {
    for at in 1..=changes().0 {
        for verdict in [Verdict::Refuse(Errno::EIO), Verdict::Deceive(Errno::EIO)] {
            let leases = Leases::new(2);
            let node = &leases.node;
            let pod = node.pod("a");
            let before = node.snapshot();
            node.script(move |number| match number == at {
                true => verdict,
                false => Verdict::Proceed,
            });
            node.add(&pod, &leases.config(json!({}))).must_fail(106);
            leases.must_be(&before, &format!("change {at}, {verdict:?}"));
        }
    }
}

#[test]
fn any_change_of_del_is_refused_once() {
    for at in 1..=changes().2 {
        let leases = Leases::new(2);
        let node = &leases.node;
        let pod = node.pod("a");
        let before = node.snapshot();
        let config = leases.config(json!({}));
        node.add(&pod, &config).must_succeed();
        node.script(move |number| match number == at {
            true => Verdict::Refuse(Errno::EBUSY),
            false => Verdict::Proceed,
        });
        node.del(&pod, &config).must_succeed();
        leases.must_be(&before, &format!("change {at}"));
    }
}

/// The verb that runs after a killed verb.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Restorer {
    Del,
    AddOfAnother,
    Gc,
}

/// Kills `verb` after change `at` (0: before the first change), and then ends the pod's namespace if `dies` is true.
/// `restorer` removes everything that the killed verb left.
fn kill(verb: &str, at: usize, dies: bool, restorer: Restorer) {
    let what = format!("{verb} {at}, namespace dies: {dies}, {restorer:?}");
    let leases = Leases::new(2);
    let node = &leases.node;
    let config = leases.config(json!({}));
    let other = node.pod("b");
    let without: Snapshot = node.snapshot();
    let pod = node.pod("a");
    let before = if dies { without } else { node.snapshot() };
    if verb == "DEL" {
        node.add(&pod, &config).must_succeed();
    }
    node.script(move |number| match (at, number) {
        (0, 1) => Verdict::DieBefore,
        (at, number) if at == number => Verdict::DieAfter,
        _ => Verdict::Proceed,
    });
    node.run(verb, Some(&pod), &config);
    assert!(node.kernel.journal().len() >= at, "{what}");
    node.kernel.begin();
    if dies {
        node.kernel.with(|world| world.unmount(&pod.netns));
    }
    match restorer {
        Restorer::Del => drop(node.del(&pod, &config).must_succeed()),
        Restorer::Gc => drop(node.gc(&[], &config).must_succeed()),
        Restorer::AddOfAnother => {
            // another attachment's shared devices are no obstacle to this ADD
            node.add(&other, &config).must_succeed();
            assert_eq!(leases.held(), ["b@rdma0", "b@rdma1"], "{what}");
            if !dies {
                let netns = node.netns(&pod);
                let rules = node.kernel.with(|world| world.rules(netns).len());
                assert_eq!((rules, has_link(node, &pod, "rdma0")), (0, false), "{what}");
            }
            node.del(&other, &config).must_succeed();
        }
    }
    leases.must_be(&before, &what);
    node.del(&pod, &config).must_succeed();
    leases.must_be(&before, &what);
}

#[test]
fn add_and_del_are_killed_at_any_change() {
    let (add, announcements, del) = changes();
    assert!(add >= 30 && announcements == 4 && del >= 7, "{add} {del}");
    for (verb, changes) in [("ADD", add + announcements), ("DEL", del)] {
        for at in 0..=changes {
            for restorer in [Restorer::Del, Restorer::AddOfAnother, Restorer::Gc] {
                // alternates, so each restorer runs with and without the pod's namespace
                let dies = (at + restorer as usize).is_multiple_of(2);
                kill(verb, at, dies, restorer);
            }
        }
    }
}

/// Runs ADD for a new pod with the Kubernetes name `name`. Returns the pod and the result.
fn named(leases: &Leases, container: &str, name: &str) -> (Pod, Value) {
    let pod = leases.node.pod(container);
    let config = leases.config(json!({}));
    let result = run_named(&leases.node, "ADD", &pod, name, &config);
    assert!(result["code"].is_null(), "{result}");
    (pod, result)
}

#[test]
fn a_namespace_that_is_gone_keeps_no_lease_and_no_file() {
    for restorer in [Restorer::Del, Restorer::Gc, Restorer::AddOfAnother] {
        let leases = Leases::new(2);
        let node = &leases.node;
        let before = node.snapshot();
        let config = leases.config(json!({}));
        let (pod, _) = named(&leases, "a", "trainer-0");
        assert_eq!(leases.rails_files(), ["ns_trainer-0"]);
        node.kernel.with(|world| world.unmount(&pod.netns));
        match restorer {
            Restorer::Del => drop(node.del(&pod, &config).must_succeed()),
            Restorer::Gc => drop(node.gc(&[], &config).must_succeed()),
            Restorer::AddOfAnother => {
                let other = node.pod("b");
                node.add(&other, &config).must_succeed();
                assert_eq!(leases.held(), ["b@rdma0", "b@rdma1"]);
                assert_eq!(leases.rails_files(), ["b"]);
                node.del(&other, &config).must_succeed();
                node.kernel.with(|world| world.unmount(&other.netns));
            }
        }
        leases.must_be(&before, &format!("{restorer:?}"));
    }
}

#[test]
fn a_reboot_leaves_leases_and_files_to_whoever_comes() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let before = node.snapshot();
    let config = leases.config(json!({}));
    let (pod, _) = named(&leases, "a", "trainer-0");
    node.kernel.with(|world| {
        world.reboot();
        crate::node::settle(world);
    });
    node.kernel.begin();
    node.del(&pod, &config).must_succeed();
    assert!(node.kernel.journal().is_empty());
    leases.must_be(&before, "after the reboot");
}

/// A process of the pod, which `rdma-cni` cannot see, keeps the namespace alive. The address is still in use, so no
/// other pod may get it.
#[test]
fn a_namespace_that_is_kept_alive_keeps_its_leases() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let before = node.snapshot();
    let config = leases.config(json!({}));
    let (pod, _) = named(&leases, "a", "trainer-0");
    let process = node.kernel.open_pod(&pod.netns).unwrap();
    node.kernel.with(|world| world.unmount(&pod.netns));
    // another pod's ADD does not wait for the namespace, and does not release the first pod's addresses
    let other = node.pod("b");
    leases.gives("rdma0", &crate::leases::answer(0, 8));
    node.add(&other, &config).must_succeed();
    assert_eq!(leases.held(), ["a@rdma0", "b@rdma0"]);
    node.del(&other, &config).must_succeed();
    node.kernel.with(|world| world.unmount(&other.netns));
    let message = node.del(&pod, &config).must_fail(107);
    for word in [
        "10.0.0.7",
        "still configured",
        "keeps the ended pod's namespace alive",
    ] {
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(leases.held(), ["a@rdma0"]);
    assert!(node.record_of(&pod).exists());
    let mut process = Some(process);
    node.kernel.meanwhile(move |pause| {
        if pause == 3 {
            process.take();
        }
    });
    node.del(&pod, &config).must_succeed();
    leases.must_be(&before, "when the process has ended");
}

#[test]
fn the_file_of_a_newer_pod_of_the_same_name_stays() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let before = node.snapshot();
    let config = leases.config(json!({}));
    let (old, _) = named(&leases, "old", "trainer-0");
    leases.gives("rdma0", &crate::leases::answer(0, 8));
    leases.gives("rdma1", &crate::leases::answer(1, 8));
    let (new, _) = named(&leases, "new", "trainer-0");
    run_named(node, "DEL", &old, "trainer-0", &config);
    let file = leases
        .rails_file("ns_trainer-0")
        .expect("that of the newer");
    assert_eq!(
        (&file["containerID"], &file["pod"]),
        (&json!("new"), &json!("ns/trainer-0"))
    );
    // a second DEL, without a record
    run_named(node, "DEL", &old, "trainer-0", &config);
    assert_eq!(leases.rails_files(), ["ns_trainer-0"]);
    node.del(&new, &config).must_succeed();
    for pod in [old, new] {
        node.kernel.with(|world| world.unmount(&pod.netns));
    }
    leases.must_be(&before, "after both");
}

/// The pod has no rails any more, whether or not IPAM has released the addresses.
#[test]
fn the_file_goes_with_the_devices_and_the_record_with_the_leases() {
    for lives in [true, false] {
        let leases = Leases::new(2);
        let node = &leases.node;
        let config = leases.config(json!({}));
        let (pod, _) = named(&leases, "a", "trainer-0");
        if !lives {
            node.kernel.with(|world| world.unmount(&pod.netns));
        }
        leases.refuses("DEL", true);
        node.del(&pod, &config).must_fail(104);
        assert_eq!(leases.rails_files(), [""; 0]);
        assert!(node.record_of(&pod).exists());
        leases.refuses("DEL", false);
        node.del(&pod, &config).must_succeed();
        assert_eq!((leases.held(), node.records()), (vec![], vec![]));
    }
}

/// A failed ADD can be repeated, and leaves nothing that disturbs another pod.
#[test]
fn an_add_that_failed_can_be_repeated() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = leases.config(json!({}));
    leases.refuses("ADD", true);
    for _ in 0..2 {
        let message = node.add(&pod, &config).must_fail(104);
        assert!(message.contains("the store is away"), "{message}");
        leases.must_be(&before, "failed");
    }
    leases.refuses("ADD", false);
    let result = node.add(&pod, &config).must_succeed();
    leases.check(&pod, &config, &result).must_succeed();
    // an ADD for an attachment that exists
    let message = node.add(&pod, &config).must_fail(101);
    assert!(message.contains("attached already"), "{message}");
    node.del(&pod, &config).must_succeed();
    leases.must_be(&before, "after DEL");
    link_is_free(node);
}

/// Asserts that `eth8`, which no pod shares, can still be moved.
fn link_is_free(node: &Node) {
    let pod = node.pod("z");
    let config = node.config(json!({ "deviceID": "0000:3b:00.0" }));
    node.add(&pod, &config).must_succeed();
    assert_eq!(link_of(node, &pod, "rdma0").child, None);
    node.del(&pod, &config).must_succeed();
}

/// The attachment is not `eth0`, so its DEL ends no pod. No temporary child of the port remains in the pod, even if the
/// pod's own child is removed late.
#[test]
fn the_ipvlan_placeholder_ends_with_del() {
    for is_late in [false, true] {
        let leases = Leases::new(1);
        let node = &leases.node;
        let pod = node.pod("a").attachment("net1");
        let other = node.pod("other");
        let config = leases.config(json!({ "child": { "type": "ipvlan" } }));
        node.add(&pod, &config).must_succeed();
        let before = link_of(node, &pod, "rdma0").child;
        let child = |mode, name: &str| Op::AddChild {
            at: NetnsSide::Pod,
            parent: crate::node::name("bond0"),
            child: Child::Ipvlan { mode },
            name: crate::node::name(name),
            mtu: 1500,
        };
        node.change(Some(&other), &child(IpvlanMode::L3, "x"));
        assert_ne!(link_of(node, &pod, "rdma0").child, before);
        let mut refusals = if is_late { 2 } else { 0 };
        node.kernel.intercept(move |_, step| match step.op {
            Op::Link {
                link,
                change: LinkChange::Remove,
                ..
            } if **link == *"rdma0" && refusals > 0 => {
                refusals -= 1;
                Verdict::Refuse(Errno::EBUSY)
            }
            _ => Verdict::Proceed,
        });
        node.del(&pod, &config).must_succeed();
        assert_eq!(
            link_of(node, &other, "x").child,
            before,
            "the port has another mode"
        );
        let netns = node.netns(&pod);
        node.kernel.with(|world| {
            let links = world.links(netns);
            let mut made = links.iter().filter(|it| it.kind.is_some());
            assert!(made.next().is_none(), "{links:?}");
        });
    }
}

/// DEL removes a netdev that may belong to the host only after an earlier DEL has named it in its error. After a killed
/// DEL, another pod's ADD or a GC keeps the netdev, and an error of GC does not count.
#[test]
fn a_netdev_that_may_be_the_hosts_is_removed_after_a_del_that_named_it() {
    for restorer in [Restorer::AddOfAnother, Restorer::Gc] {
        let leases = Leases::new(1);
        let node = &leases.node;
        let [pod, other] = ["a", "b"].map(|it| node.pod(it));
        let config = leases.config(json!({}));
        node.add(&pod, &config).must_succeed();
        let (at, link) = (NetnsSide::Pod, crate::node::name("net1"));
        let made = Op::AddChild {
            at,
            parent: crate::node::name("bond0"),
            child: Child::Macvlan {
                mode: MacvlanMode::Bridge,
            },
            name: link.clone(),
            mtu: 1500,
        };
        let alias = "hosts0".to_owned();
        for op in [
            made,
            Op::Link {
                at,
                link,
                change: LinkChange::Alias(alias),
            },
        ] {
            node.change(Some(&pod), &op);
        }
        assert!(node.kill(1, Verdict::DieBefore, |node| {
            node.run("DEL", Some(&pod), &config);
        }));
        match restorer {
            Restorer::Gc => drop(node.gc(&[], &config).must_fail(107)),
            _ => drop(node.add(&other, &config).must_succeed()),
        }
        assert!(has_link(node, &pod, "net1"), "{restorer:?}");
        let message = node.del(&pod, &config).must_fail(107);
        let expected = "net1 of the pod has the alias hosts0";
        assert!(message.contains(expected), "{restorer:?}: {message}");
        assert!(has_link(node, &pod, "net1"), "{restorer:?}");
        // after a DEL that fails for another reason, the netdev still counts as named
        node.kernel.begin();
        node.kernel.intercept(|_, step| match step.op {
            Op::Link {
                link,
                change: LinkChange::Remove,
                ..
            } if &**link == "net1" => Verdict::Refuse(Errno::EPERM),
            _ => Verdict::Proceed,
        });
        node.del(&pod, &config).must_fail(107);
        node.kernel.begin();
        node.del(&pod, &config).must_succeed();
        assert!(!has_link(node, &pod, "net1"), "{restorer:?}");
    }
}
