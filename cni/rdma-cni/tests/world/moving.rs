// SPDX-License-Identifier: Apache-2.0
//! Tests of ADD and DEL without disturbances.

use crate::node::{Node, name};
use rdma_netns::RdmaMode;

#[test]
fn two_rails_go_and_return() {
    for mode in [RdmaMode::Exclusive, RdmaMode::Shared] {
        let node = Node::new(mode);
        let pod = node.pod("a");
        let before = node.snapshot();
        let result = node.add(&pod, &node.two_rails()).must_succeed();
        let names: Vec<_> = result["interfaces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|i| &i["name"])
            .collect();
        assert_eq!(names, ["rdma0", "rdma1"]);
        let netns = node.netns(&pod);
        node.kernel.with(|world| {
            assert_eq!(world.link(netns, "rdma0").unwrap().addresses.len(), 3);
            assert_eq!(world.link(netns, "rdma1").unwrap().name, name("rdma1"));
            if mode == RdmaMode::Exclusive {
                assert_eq!(world.place_of_rdma("mlx5_2"), Some(netns));
            }
        });
        node.run("CHECK", Some(&pod), &{
            let mut config = node.two_rails();
            config["prevResult"] = result;
            config
        })
        .must_succeed();
        node.del(&pod, &node.two_rails()).must_succeed();
        node.must_be(&before, "after DEL");
        node.del(&pod, &node.two_rails()).must_succeed();
        node.must_be(&before, "after another DEL");
    }
}

#[test]
fn late_device_nodes_are_waited_for() {
    let node = Node::new(RdmaMode::Exclusive);
    node.kernel.with(|world| world.udev = 3);
    let pod = node.pod("a");
    node.add(&pod, &node.two_rails()).must_succeed();
    let netns = node.netns(&pod);
    let seen = node.kernel.with(|world| world.observe(Some(netns)));
    let mut nodes = seen
        .pod
        .unwrap()
        .rdma
        .into_iter()
        .flat_map(|device| device.char_devices);
    assert!(nodes.all(|node| node.is_in_place()));
}

#[test]
fn device_nodes_that_never_come_fail_add() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let before = node.snapshot();
    node.kernel.with(|world| world.udev = u32::MAX);
    let message = node.add(&pod, &node.one_rail()).must_fail(106);
    assert!(message.contains("uverbs"), "{message}");
    node.must_be(&before, "undone");
}
