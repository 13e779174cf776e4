// SPDX-License-Identifier: Apache-2.0
//! Devices that are nowhere to be seen: their namespace has no path any more, and is kept
//! alive by a descriptor.

use crate::{
    node::{Node, mac, name, settle},
    wrapped::Wrapped,
};
use fake_kernel::{Nic, World};
use rdma_netns::{Kernel as _, NetnsSide, Op, RdmaMode};
use serde_json::json;
use std::{fs, thread};

/// Two netdevs of one PCI function, as a dual-port ConnectX-3 has them.
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
    // a DEL waits a while for such a device
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
    let message = node.del(&pod, &config).must_fail(107);
    assert!(
        message.contains(ours) && !message.contains(other),
        "{message}"
    );
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
        Op::SetUp {
            at: NetnsSide::Pod,
            link: name("rdma0"),
            up: false,
        },
        Op::SetMac {
            at: NetnsSide::Pod,
            link: name("rdma0"),
            mac: mac("06:00:00:00:12:34"),
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
    // under the pod's name, with the pod's address
    let host = node.kernel.with(|world| world.observe(None).host);
    assert_eq!(host.links.last().unwrap().name, name("rdma0"));
    del().must_succeed();
    node.must_be(&before, "restored");
}
