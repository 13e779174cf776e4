// SPDX-License-Identifier: Apache-2.0
//! Tests of functions that the kernel removed while a pod had their devices, and found again at the same address.

use crate::node::{Node, Pod, configure, name, settle};
use fake_kernel::{Nic, World, world::HOST};
use rdma_netns::{NetnsSide, Op, RdmaMode};
use serde_json::{Value, json};
use std::fs;

const ADDRESS: &str = "0000:3b:00.0";

/// Returns the NIC at [`ADDRESS`]. The world gives each plugged NIC another hardware address.
fn nic() -> Nic {
    Nic::physical(ADDRESS, "p0", "mlx5_7")
}

/// Returns a node whose pod `a` has the NIC at [`ADDRESS`], and the configuration of the ADD.
fn attached() -> (Node, Pod, Value) {
    let mut world = World::new(Some(RdmaMode::Exclusive));
    world.plug(nic());
    configure(&mut world, "p0", 1);
    // a new netdev must not get the former index of p0
    world.plug(Nic::physical("0000:5e:00.0", "last", "mlx5_8"));
    settle(&mut world);
    let node = Node::with(world);
    let mut config = node.config(json!({ "devices": [{ "netdev": "p0" }], "rebindDriver": true }));
    // without tables, because DEL would remove the pod's rules
    config["routing"] = json!({ "tableBase": 0 });
    let pod = node.pod("a");
    node.add(&pod, &config).must_succeed();
    (node, pod, config)
}

fn replace(node: &Node) {
    node.kernel.with(|world| {
        world.unplug(ADDRESS);
        world.plug(nic());
    });
}

/// The NIC is replaced at its address. DEL succeeds without a change of the new NIC. The next pod gets the new NIC.
#[test]
fn another_nic_at_the_address_is_not_waited_for() {
    for dies in [false, true] {
        let (node, pod, config) = attached();
        replace(&node);
        if dies {
            node.kernel.with(|world| world.unmount(&pod.netns));
        }
        let before = node.snapshot();
        node.del(&pod, &config).must_succeed();
        node.must_be(&before, "the new NIC is untouched");
        let next = node.pod("b");
        node.add(&next, &config).must_succeed();
        node.del(&next, &config).must_succeed();
    }
}

/// An administrator has moved the devices of the new NIC into a namespace that DEL does not see.
#[test]
fn the_new_devices_are_not_looked_for() {
    let (node, pod, config) = attached();
    replace(&node);
    let other = node.pod("other");
    let (from, to) = (NetnsSide::Host, NetnsSide::Pod);
    let ops = [
        Op::MoveRdma {
            device: "mlx5_7".to_owned(),
            from,
            to,
        },
        Op::MoveLink {
            link: name("p0"),
            from,
            to,
            name: name("p0"),
        },
    ];
    ops.iter().for_each(|op| node.change(Some(&other), op));
    let before = node.snapshot();
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "the other namespace keeps its devices");
}

/// A record of an earlier version does not identify the function.
#[test]
fn a_record_without_the_functions_identity_is_read() {
    let (node, pod, config) = attached();
    let path = node.record_of(&pod);
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let rail = record["rails"][0].as_object_mut().unwrap();
    assert!(rail.remove("inodes").is_some(), "{record}");
    fs::write(&path, record.to_string()).unwrap();
    node.del(&pod, &config).must_succeed();
    let is_home = node.kernel.with(|world| world.link(HOST, "p0").is_some());
    assert!(is_home && node.records().is_empty());
}
