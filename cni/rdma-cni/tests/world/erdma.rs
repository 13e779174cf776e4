// SPDX-License-Identifier: Apache-2.0
//! Tests of eRDMA. A NIC has two functions. The RDMA device has one of them as parent, or has no
//! parent.

use crate::node::{Node, host_change, settle};
use fake_kernel::{World, world::HOST};
use rdma_netns::{LinkChange, RdmaMode};
use serde_json::{Value, json};
use std::fs;

/// Returns a node with two NICs. Their RDMA devices have a parent if `has_parent` is true.
pub(crate) fn node(mode: RdmaMode, has_parent: bool) -> Node {
    let mut world = World::new(Some(mode));
    for (number, link) in [(1, "eth1"), (2, "eth2")] {
        let (virtio, erdma) = (
            format!("0000:00:0{number}.0"),
            format!("0000:00:1{number}.0"),
        );
        let rdma = format!("erdma_{}", number - 1);
        world.plug_erdma(&virtio, link, (&erdma, &rdma), has_parent);
    }
    for link in ["eth1", "eth2"] {
        let set_up = host_change(link, LinkChange::Up(true));
        world.execute(&set_up, None).expect("set up");
    }
    settle(&mut world);
    Node::with(world)
}

/// Returns five selectors. Each one matches every NIC of the node.
fn selectors() -> [Value; 5] {
    [
        json!({"driver": "erdma"}),
        json!({"vendor": "1DED"}),
        json!({"rdma": "erdma_*"}),
        json!({"netdev": "eth*"}),
        json!({"driver": "virtio*"}),
    ]
}

/// Returns the character devices in the record of the node's only pod.
fn recorded_verbs(node: &Node) -> [Value; 2] {
    let path = node.state.path().join("state/attachments/rails");
    let text = fs::read_to_string(path.join(&node.records()[0])).expect("a record");
    let mut record: Value = serde_json::from_str(&text).expect("JSON");
    [0, 1].map(|at: usize| record["rails"][at]["erdmaVerbs"].take())
}

/// Returns the character devices of the RDMA devices without a parent.
fn seen_verbs(node: &Node, has_parent: bool) -> [Value; 2] {
    ["0000:00:11.0", "0000:00:12.0"].map(|function| {
        let address = function.to_owned().try_into().expect("an address");
        let rdma = node.kernel.with(|world| world.rdma_device(&address));
        let verbs = &rdma.expect("an RDMA device").char_devices[0].name;
        match has_parent {
            true => Value::Null,
            false => verbs.as_str().into(),
        }
    })
}

#[test]
fn both_layouts_are_moved_by_any_function_and_come_back() {
    for has_parent in [true, false] {
        for selector in selectors() {
            let node = node(RdmaMode::Exclusive, has_parent);
            let pod = node.pod("a");
            let before = node.snapshot();
            let mut config = node.config(json!({"devices": [selector]}));
            let result = node.add(&pod, &config).must_succeed();
            let rails = result["rails"].as_array().expect("rails").iter();
            let rdma: Vec<&str> = rails.filter_map(|it| it["rdmaDevice"].as_str()).collect();
            assert_eq!(
                rdma,
                ["erdma_0", "erdma_1"],
                "{has_parent} {selector}: {result}"
            );
            assert_eq!(recorded_verbs(&node), seen_verbs(&node, has_parent));
            config["prevResult"] = result;
            node.run("CHECK", Some(&pod), &config).must_succeed();
            node.del(&pod, &config).must_succeed();
            node.must_be(&before, "after DEL");
        }
    }
}

#[test]
fn both_layouts_are_shared() {
    for has_parent in [true, false] {
        let node = node(RdmaMode::Shared, has_parent);
        let pod = node.pod("a");
        let before = node.snapshot();
        let config = json!({"devices": [{"driver": "erdma"}], "mode": "share"});
        let config = node.config(config);
        let result = node.add(&pod, &config).must_succeed();
        assert_eq!(result["rails"][1]["rdmaDevice"], "erdma_1", "{result}");
        node.del(&pod, &config).must_succeed();
        node.must_be(&before, "after DEL");
    }
}

/// The driver of one NIC's RDMA function is unbound while another pod has an RDMA device of the same driver. DEL does
/// not wait for the other pod.
#[test]
fn a_lost_device_is_not_looked_for_while_another_pod_has_one() {
    for ends_first in [false, true] {
        let node = node(RdmaMode::Exclusive, false);
        let config = |link: &str| node.config(json!({"devices": [{"netdev": link}]}));
        let [a, b] = ["a", "b"].map(|it| node.pod(it));
        node.add(&a, &config("eth1")).must_succeed();
        node.add(&b, &config("eth2")).must_succeed();
        node.kernel.with(|world| {
            world.bind("0000:00:11.0", None);
            if ends_first {
                world.unmount(&a.netns);
            }
        });
        node.del(&a, &config("eth1")).must_succeed();
        let is_home = |link| node.kernel.with(|world| world.link(HOST, link).is_some());
        assert!(is_home("eth1"), "the netdev is home");
        assert!(!is_home("eth2"), "the other pod keeps its netdev");
        node.del(&b, &config("eth2")).must_succeed();
        assert!(is_home("eth2"), "both netdevs are home");
        assert!(node.records().is_empty());
    }
}
