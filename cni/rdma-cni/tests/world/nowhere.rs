// SPDX-License-Identifier: Apache-2.0
//! Tests of devices that are neither on the host nor in the pod's namespace: they have no netdev, or are in a namespace
//! of another pod or in one to which no path leads.

use crate::{
    node::{Node, Pod, host_change, mac, name, settle},
    wrapped::Wrapped,
};
use attachments::{Attribute, given_up};
use fake_kernel::{Nic, World};
use rdma_netns::{DeviceAddress, Kernel as _, LinkChange, NetnsSide, Op, RdmaMode};
use serde_json::{Value, json};
use std::{
    fs, thread,
    time::{Duration, SystemTime},
};

/// Returns a world with two netdevs of one PCI function, as a dual-port ConnectX-3 has.
fn dual_port() -> World {
    let mut world = World::new(Some(RdmaMode::Shared));
    for (port, link) in [(1, "p0"), (2, "p1")] {
        let rdma = format!("none{port}");
        world.plug(Nic::physical("0000:3b:00.0", link, &rdma).without_rdma());
        crate::node::configure(&mut world, link, port);
    }
    settle(&mut world);
    world
}

#[test]
fn the_other_port_is_not_taken_for_a_device_that_is_nowhere() {
    // the cases run in parallel, because DEL waits for a device that it cannot find
    thread::scope(|scope| {
        scope.spawn(|| goes_nowhere_and_returns("p0", "p1"));
        scope.spawn(|| goes_nowhere_and_returns("p1", "p0"));
    });
}

fn goes_nowhere_and_returns(ours: &str, other: &str) {
    let node = Node::with(dual_port());
    let config = node.config(json!({ "devices": [{ "netdev": ours }], "requireRdma": false }));
    let before = node.snapshot();
    let pod = node.pod("a");
    node.add(&pod, &config).must_succeed();
    let descriptor = node.kernel.open_pod(&pod.netns).unwrap();
    node.kernel.with(|world| world.unmount(&pod.netns));
    let held = node.snapshot();
    node.kernel.begin();
    for _ in 0..2 {
        let message = node.del(&pod, &config).must_fail(107);
        assert!(
            message.contains(ours) && !message.contains(other),
            "{message}"
        );
    }
    assert_eq!(node.kernel.journal(), [] as [Op; 0]);
    assert_eq!(held.differences(&node.snapshot()), [] as [&str; 0]);
    assert!(node.record_of(&pod).exists());
    drop(descriptor);
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, ours);
}

#[test]
fn the_other_port_of_a_held_function_goes_to_no_other_pod() {
    let node = Node::with(dual_port());
    let config =
        |link: &str| node.config(json!({ "devices": [{ "netdev": link }], "requireRdma": false }));
    let before = node.snapshot();
    let pod = node.pod("a");
    node.add(&pod, &config("p0")).must_succeed();
    let message = node.add(&node.pod("b"), &config("p1")).must_fail(101);
    assert!(message.contains("container a"), "{message}");
    node.del(&pod, &config("p0")).must_succeed();
    node.kernel.with(|world| {
        world.unmount("/run/netns/a");
        world.unmount("/run/netns/b");
    });
    node.must_be(&before, "after DEL");
}

/// Another netdev of the function was made after ADD, and is on the host or in the pod. The pod has moved its rail to
/// another namespace.
#[test]
fn a_later_netdev_of_the_function_is_not_taken_for_the_rail() {
    for is_in_pod in [false, true] {
        let mut world = World::new(Some(RdmaMode::Shared));
        let port = |link: &str| Nic::physical("0000:3b:00.0", link, "none").without_rdma();
        world.plug(port("p0"));
        crate::node::configure(&mut world, "p0", 1);
        // the new p1 must not get the former index of p0
        world.plug(Nic::physical("0000:5e:00.0", "last", "none").without_rdma());
        settle(&mut world);
        let node = Node::with(world);
        let mut config =
            node.config(json!({ "devices": [{ "netdev": "p0" }], "requireRdma": false }));
        // without tables, because DEL would remove a rule of the pod first
        config["routing"] = json!({ "tableBase": 0 });
        let [pod, hidden] = ["a", "b"].map(|it| node.pod(it));
        node.add(&pod, &config).must_succeed();
        node.kernel.with(|world| world.plug(port("p1")));
        let change = |pod: &Pod, link: &str, from, to, to_name: &str| {
            let (link, name) = (name(link), name(to_name));
            node.change(
                Some(pod),
                &Op::MoveLink {
                    link,
                    from,
                    to,
                    name,
                },
            );
        };
        change(&pod, "rdma0", NetnsSide::Pod, NetnsSide::Host, "stolen");
        change(&hidden, "stolen", NetnsSide::Host, NetnsSide::Pod, "stolen");
        if is_in_pod {
            change(&pod, "p1", NetnsSide::Host, NetnsSide::Pod, "p1");
        }
        let held = node.snapshot();
        let message = node.del(&pod, &config).must_fail(107);
        assert!(message.contains("p0"), "{message}");
        assert_eq!(held.differences(&node.snapshot()), [] as [&str; 0]);
        node.kernel.with(|world| world.unmount(&hidden.netns));
        node.del(&pod, &config).must_succeed();
        let host = node.kernel.with(|world| world.observe(None).host);
        let addresses = host.link("p0").expect("it is home").addresses.len();
        assert!(addresses > 1, "{addresses} addresses");
        assert_eq!(host.link("p1").is_none(), is_in_pod);
    }
}

/// Returns a node whose pod `a` has `eth2`, and the configuration of its ADD. The driver of `eth2` stays bound and has
/// removed netdev and RDMA device, as after the function left its bus.
fn driver_without_netdev() -> (Node, Pod, Value) {
    let node = Node::new(RdmaMode::Exclusive);
    let config = node.config(json!({ "devices": [{ "netdev": "eth2" }] }));
    let pod = node.pod("a");
    node.add(&pod, &config).must_succeed();
    let remove = |world: &mut World| world.bind("0000:3b:00.2", Some("mlx5_core"));
    node.kernel.with(remove);
    (node, pod, config)
}

/// Lets three minutes pass. A driver has this time to recover its function.
fn wait(node: &Node) {
    node.kernel.with(|world| world.pass_seconds(181));
}

#[test]
fn a_del_after_three_minutes_gives_a_netdev_up_that_no_namespace_has() {
    let (node, pod, config) = driver_without_netdev();
    for _ in 0..2 {
        let begun = node.kernel.now();
        let message = node.del(&pod, &config).must_fail(107);
        let expected = "eth2 is not back on the host: 0000:3b:00.2 has a driver and no netdev";
        assert!(message.contains(expected), "{message}");
        assert!(node.record_of(&pod).exists());
        let waited = node.kernel.now() - begun;
        assert!(waited >= Duration::from_secs(10), "{waited:?}");
    }
    wait(&node);
    node.del(&pod, &config).must_succeed();
    assert!(node.records().is_empty());
    // doctor reports the netdev until it is on the host
    let notes = given_up::read(&node.state.path().join("state")).unwrap();
    let lacks: Vec<_> = notes.iter().flat_map(|it| &it.lacks).collect();
    let expected = "eth2 no longer exists: 0000:3b:00.2 has no netdev in any namespace";
    assert_eq!(lacks.len(), 1, "{notes:?}");
    assert_eq!(lacks[0].attribute, Attribute::Netdev);
    assert_eq!(lacks[0].why, expected);
}

/// An administrator or NTP sets the node's clock between two DELs.
#[test]
fn a_step_of_the_clock_gives_no_netdev_up() {
    let (node, pod, config) = driver_without_netdev();
    node.del(&pod, &config).must_fail(107);
    let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
    for written in [now - hour, now + hour] {
        let record = fs::File::options().write(true).open(node.record_of(&pod));
        record.unwrap().set_modified(written).unwrap();
        node.del(&pod, &config).must_fail(107);
    }
}

#[test]
fn a_netdev_that_its_driver_makes_during_the_last_del_is_restored() {
    let before = Node::new(RdmaMode::Exclusive).snapshot().without_numbers();
    let (node, pod, config) = driver_without_netdev();
    node.del(&pod, &config).must_fail(107);
    wait(&node);
    let kernel = node.kernel.clone();
    node.kernel.meanwhile(move |pause| {
        if pause == 100 {
            let device = DeviceAddress::try_from("0000:3b:00.2".to_owned()).unwrap();
            let driver = "mlx5_core".to_owned();
            let op = Op::RebindDriver { device, driver };
            kernel.execute(&op, None).unwrap();
        }
    });
    node.del(&pod, &config).must_succeed();
    node.kernel.with(|world| world.unmount(&pod.netns));
    let after = node.snapshot().without_numbers();
    assert_eq!(before.differences(&after), [] as [&str; 0]);
}

/// An earlier verb has tried without binding the driver. The last DEL binds the driver before it gives the netdev up.
#[test]
fn the_last_del_binds_the_driver_again_if_rebind_driver_is_set() {
    let before = Node::new(RdmaMode::Exclusive).snapshot().without_numbers();
    let node = Node::new(RdmaMode::Exclusive);
    let config = node.config(json!({ "devices": [{ "netdev": "eth2" }], "rebindDriver": true }));
    let pod = node.pod("a");
    node.add(&pod, &config).must_succeed();
    let remove = |world: &mut World| world.bind("0000:3b:00.2", Some("mlx5_core"));
    node.kernel.with(remove);
    let record = node.record_of(&pod);
    let mut tried: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    tried["failedAt"] = json!(node.kernel.uptime());
    fs::write(&record, tried.to_string()).unwrap();
    wait(&node);
    node.kernel.begin();
    node.del(&pod, &config).must_succeed();
    let is_rebind = |op: &Op| matches!(op, Op::RebindDriver { .. });
    assert!(node.kernel.journal().iter().any(is_rebind));
    node.kernel.with(|world| world.unmount(&pod.netns));
    let after = node.snapshot().without_numbers();
    assert_eq!(before.differences(&after), [] as [&str; 0]);
}

#[test]
fn hardware_without_a_parent_is_waited_for() {
    let mut world = World::new(Some(RdmaMode::Exclusive));
    world.plug(Nic::physical("0000:3b:00.2", "eth2", "none").without_rdma());
    crate::node::configure(&mut world, "eth2", 2);
    settle(&mut world);
    let node = Node::with(world);
    let kernel = Wrapped {
        busless: true,
        ..Wrapped::new(&node)
    };
    let config = node.config(json!({ "devices": [{ "netdev": "eth2" }], "requireRdma": false }));
    let before = node.snapshot();
    let pod = node.pod("a");
    kernel.run(&node, "ADD", Some(&pod), &config).must_succeed();
    let record = fs::read_to_string(node.record_of(&pod)).unwrap();
    assert!(!record.contains("\"parent\""), "{record}");
    let changes = [
        Op::Link {
            at: NetnsSide::Pod,
            link: name("rdma0"),
            change: LinkChange::Up(false),
        },
        Op::Link {
            at: NetnsSide::Pod,
            link: name("rdma0"),
            change: LinkChange::Mac(mac("06:00:00:00:12:34")),
        },
    ];
    changes.iter().for_each(|op| node.change(Some(&pod), op));
    let descriptor = node.kernel.open_pod(&pod.netns).unwrap();
    node.kernel.with(|world| world.unmount(&pod.netns));
    let del = || kernel.run(&node, "DEL", Some(&pod), &config);
    let message = del().must_fail(107);
    assert!(message.contains("eth2"), "{message}");
    assert!(node.record_of(&pod).exists());
    drop(descriptor);
    // the kernel returned the netdev with the name that it had in the pod
    let host = node.kernel.with(|world| world.observe(None).host);
    assert_eq!(host.links.last().unwrap().name, name("rdma0"));
    del().must_succeed();
    node.must_be(&before, "restored");
}

/// Moves the netdev and the RDMA device of `pod` into the namespace of `other`, where they have other names.
fn hand_over(node: &Node, rdma: &str, pod: &Pod, other: &Pod) {
    let ways = [
        (pod, NetnsSide::Pod, NetnsSide::Host),
        (other, NetnsSide::Host, NetnsSide::Pod),
    ];
    for (pod, from, to) in ways {
        let link = if from == NetnsSide::Pod {
            "rdma0"
        } else {
            "stolen"
        };
        let ops = [
            Op::MoveRdma {
                device: rdma.into(),
                from,
                to,
            },
            Op::MoveLink {
                link: name(link),
                from,
                to,
                name: name("stolen"),
            },
        ];
        ops.iter().for_each(|op| node.change(Some(pod), op));
    }
}

/// The netdev and the RDMA device are in another pod's namespace, or in a namespace without a path. They return to the
/// host, and the next pod gets them.
#[test]
fn a_function_in_a_foreign_namespace_comes_home_as_the_last_resort() {
    thread::scope(|scope| {
        for is_named in [true, false] {
            scope.spawn(move || comes_home(is_named));
        }
    });
}

fn comes_home(is_named: bool) {
    let node = Node::new(RdmaMode::Exclusive);
    let config = node.config(json!({ "devices": [{ "netdev": "eth2" }], "rebindDriver": true }));
    let before = node.snapshot().without_numbers();
    let [pod, other, next] = ["a", "b", "c"].map(|it| node.pod(it));
    node.add(&pod, &config).must_succeed();
    hand_over(&node, "mlx5_2", &pod, &other);
    let descriptor = node.kernel.open_pod(&other.netns).unwrap();
    if !is_named {
        node.kernel.with(|world| world.unmount(&other.netns));
    }
    node.kernel.begin();
    node.del(&pod, &config).must_succeed();
    assert_eq!(node.rebinds(), 1, "{:?}", node.kernel.journal());
    assert!(node.records().is_empty());
    node.add(&next, &config).must_succeed();
    node.del(&next, &config).must_succeed();
    drop(descriptor);
    node.kernel.with(|world| {
        for pod in [&pod, &other, &next] {
            world.unmount(&pod.netns);
        }
    });
    let after = node.snapshot().without_numbers();
    assert_eq!(before.differences(&after), [] as [&str; 0]);
}

/// The function has virtual functions, or may belong to an unreadable record. Binding the driver again could remove
/// other devices, so DEL leaves the function in the other namespace.
#[test]
fn a_function_that_is_not_certainly_the_pods_alone_is_left_where_it_is() {
    thread::scope(|scope| {
        scope.spawn(|| is_left("ens1np0", "mlx5_0", |_| ()));
        scope.spawn(|| {
            is_left("eth2", "mlx5_2", |node| {
                let other = node.pod("unreadable");
                let config = node.config(json!({ "devices": [{ "netdev": "eth3" }] }));
                node.add(&other, &config).must_succeed();
                fs::write(node.record_of(&other), "{").unwrap();
            });
        });
    });
}

#[track_caller]
fn is_left(link: &str, rdma: &str, change: impl FnOnce(&Node)) {
    let node = Node::new(RdmaMode::Exclusive);
    let config = node.config(json!({ "devices": [{ "netdev": link }], "rebindDriver": true }));
    let [pod, other] = ["a", "b"].map(|it| node.pod(it));
    node.add(&pod, &config).must_succeed();
    change(&node);
    hand_over(&node, rdma, &pod, &other);
    node.kernel.begin();
    let message = node.del(&pod, &config).must_fail(107);
    assert!(message.contains(rdma), "{message}");
    assert_eq!(node.rebinds(), 0, "{:?}", node.kernel.journal());
    assert!(node.record_of(&pod).exists());
}

/// `rdma-cni` cannot see upper netdevs in namespaces that the pod has made. If the configuration allows it, DEL binds
/// the driver again, which removes upper netdevs together with their lower netdev.
#[test]
fn a_function_that_may_have_foreign_netdevs_is_bound_anew() {
    for (is_allowed, has_upper, is_rebound) in [
        (false, false, false),
        (true, false, true),
        (false, true, false),
    ] {
        let node = Node::new(RdmaMode::Exclusive);
        let config = node.config(json!({
            "devices": [{ "netdev": "eth2" }], "rebindDriver": is_allowed,
        }));
        let before = node.snapshot().without_numbers();
        let pod = node.pod("a");
        node.add(&pod, &config).must_succeed();
        if has_upper {
            let netns = node.netns(&pod);
            node.kernel
                .with(|world| world.add_macvlan(netns, "rdma0", &name("upper0")));
        }
        node.kernel.begin();
        node.del(&pod, &config).must_succeed();
        let journal = node.kernel.journal();
        let case = format!("{is_allowed} {has_upper}: {journal:?}");
        assert_eq!(node.rebinds(), usize::from(is_rebound), "{case}");
        node.kernel.with(|world| world.unmount(&pod.netns));
        let after = node.snapshot().without_numbers();
        assert_eq!(before.differences(&after), [] as [&str; 0], "{case}");
        assert!(node.records().is_empty());
    }
}

/// Binding the driver again would also remove the other netdev.
#[test]
fn a_function_that_has_got_another_netdev_keeps_its_driver() {
    let node = Node::new(RdmaMode::Exclusive);
    let config = node.config(json!({ "devices": [{ "netdev": "eth2" }], "rebindDriver": true }));
    let pod = node.pod("a");
    node.add(&pod, &config).must_succeed();
    let port = Nic::physical("0000:3b:00.2", "port1", "none").without_rdma();
    node.kernel.with(|world| world.plug(port));
    node.kernel.begin();
    node.del(&pod, &config).must_succeed();
    assert_eq!(node.rebinds(), 0, "{:?}", node.kernel.journal());
}

/// The driver is bound again even if a second rail cannot return to the host, or if the record cannot be written.
#[test]
fn a_function_is_bound_anew_before_another_try() {
    for is_disk_full in [false, true] {
        let node = Node::new(RdmaMode::Exclusive);
        let mut config = node.two_rails();
        config["rebindDriver"] = json!(true);
        let pod = node.pod("a");
        node.add(&pod, &config).must_succeed();
        if is_disk_full {
            let new = node.record_of(&pod).with_extension("json.new");
            fs::create_dir_all(new.join("in the way")).unwrap();
        } else {
            let (at, link, name) = (NetnsSide::Host, name("ens1np0"), name("eth3"));
            node.change(
                None,
                &Op::Link {
                    at,
                    link,
                    change: LinkChange::Rename(name),
                },
            );
        }
        node.kernel.begin();
        match is_disk_full {
            true => drop(node.del(&pod, &config).must_succeed()),
            false => drop(node.del(&pod, &config).must_fail(107)),
        }
        let rebinds = if is_disk_full { 2 } else { 1 };
        assert_eq!(node.rebinds(), rebinds, "{:?}", node.kernel.journal());
        assert_ne!(node.record_of(&pod).exists(), is_disk_full);
    }
}

/// When DEL is repeated because of one rail, another rail on the host can already belong to another pod. The repeated
/// DEL does not touch the other rail's driver.
#[test]
fn a_rail_that_came_home_is_not_bound_anew_by_the_next_try() {
    let node = Node::new(RdmaMode::Exclusive);
    let mut config = node.two_rails();
    config["rebindDriver"] = json!(true);
    let [pod, owner] = ["a", "b"].map(|it| node.pod(it));
    node.add(&pod, &config).must_succeed();
    node.change(
        None,
        &host_change("ens1np0", LinkChange::Rename(name("eth3"))),
    );
    let message = node.del(&pod, &config).must_fail(107);
    assert!(message.contains("eth3"), "{message}");
    let (from, to) = (NetnsSide::Host, NetnsSide::Pod);
    for op in [
        Op::MoveRdma {
            device: "mlx5_2".into(),
            from,
            to,
        },
        Op::MoveLink {
            link: name("eth2"),
            from,
            to,
            name: name("net1"),
        },
    ] {
        node.change(Some(&owner), &op);
    }
    node.kernel.begin();
    node.del(&pod, &config).must_fail(107);
    assert_eq!(node.rebinds(), 0, "{:?}", node.kernel.journal());
}
