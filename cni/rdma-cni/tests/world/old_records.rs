// SPDX-License-Identifier: Apache-2.0
//! Records that versions wrote which knew only moves: before shares, tables and GIDs.

use crate::node::{Node, Pod};
use rdma_netns::RdmaMode;
use serde_json::{Map, Value};
use std::{fs, path::Path};

/// The record of `pod`, with nothing that an old one did not have.
fn age(node: &Node, pod: &Pod) {
    // a record as it was then
    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans");
    let old = cases::read(&plans.join("cases/detach-from-pod.json"))["record"].take();
    let old = old.as_object().unwrap();
    let path = node.record_of(pod);
    let mut record: Map<String, Value> = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(record["format"], old["format"]);
    record.retain(|key, _| old.contains_key(key));
    for rail in record["rails"].as_array_mut().unwrap() {
        let rail = rail.as_object_mut().unwrap();
        rail.retain(|key, _| old["rails"][0].get(key).is_some());
        let given = rail["given"].as_object_mut().unwrap();
        given.retain(|key, _| old["rails"][0]["given"].get(key).is_some());
        let routes = given["routes"].as_array_mut().unwrap();
        routes.retain(|route| route["table"].is_null());
        for address in given["addresses"].as_array_mut().unwrap() {
            address.as_object_mut().unwrap().remove("metric");
        }
    }
    for key in old.keys() {
        assert!(record.contains_key(key), "an old record has {key}");
    }
    assert!(!record.contains_key("routing"));
    fs::write(path, serde_json::to_vec(&record).unwrap()).unwrap();
}

fn rules(node: &Node, pod: &Pod) -> usize {
    let netns = node.netns(pod);
    node.kernel.with(|world| world.rules(netns).len())
}

#[test]
fn their_devices_return_to_the_host_by_every_way() {
    for mode in [RdmaMode::Exclusive, RdmaMode::Shared] {
        for (verb, lives) in [("DEL", true), ("DEL", false), ("GC", true), ("ADD", false)] {
            let node = Node::new(mode);
            let other = node.pod("b");
            let before = node.snapshot();
            let pod = node.pod("a");
            let mut config = node.two_rails();
            config["routing"] = serde_json::json!({ "tableBase": 0 });
            node.add(&pod, &config).must_succeed();
            age(&node, &pod);
            if !lives {
                node.kernel.with(|world| world.unmount(&pod.netns));
            }
            match verb {
                "DEL" => drop(node.del(&pod, &config).must_succeed()),
                "GC" => drop(node.gc(&[], &config).must_succeed()),
                _ => {
                    node.add(&other, &config).must_succeed();
                    node.del(&other, &config).must_succeed();
                }
            }
            node.kernel.with(|world| world.unmount(&pod.netns));
            node.must_be(&before, &format!("{verb}, {mode}, pod lives: {lives}"));
        }
    }
}

/// They made no rules: those with our numbers are another network's of the same pod.
#[test]
fn their_del_takes_no_rules() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    node.add(&pod, &node.two_rails()).must_succeed();
    assert_eq!(rules(&node, &pod), 4);
    age(&node, &pod);
    node.del(&pod, &node.two_rails()).must_succeed();
    assert_eq!(rules(&node, &pod), 4);
    assert_eq!(node.records(), [""; 0]);
}

#[test]
fn their_pods_hold_their_devices() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, other) = (node.pod("a"), node.pod("b"));
    node.add(&pod, &node.two_rails()).must_succeed();
    age(&node, &pod);
    let message = node.add(&other, &node.one_rail()).must_fail(101);
    assert!(message.contains("container a"), "{message}");
    node.del(&pod, &node.two_rails()).must_succeed();
    node.add(&other, &node.one_rail()).must_succeed();
}
