// SPDX-License-Identifier: Apache-2.0
//! Tests of a recorded namespace whose path later leads to another namespace, or cannot be opened.

use crate::{
    node::{Node, Pod},
    wrapped::Wrapped,
};
use rdma_netns::{Op, RdmaMode};
use serde_json::{Value, json};
use std::fs;

#[test]
fn a_namespace_that_cannot_be_observed_counts_as_living() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, other) = (node.pod("a"), node.pod("b"));
    let before = node.snapshot();
    node.add(&pod, &node.two_rails()).must_succeed();
    let held = node.snapshot();
    let kernel = Wrapped {
        unreadable: Some(pod.netns.clone()),
        ..Wrapped::new(&node)
    };
    for config in [node.two_rails(), node.one_rail()] {
        node.kernel.begin();
        let answer = kernel.run(&node, "ADD", Some(&other), &config);
        let message = answer.must_fail(101);
        assert!(message.contains("container a"), "{message}");
        assert_eq!(node.kernel.journal(), [] as [Op; 0]);
        assert_eq!(node.snapshot(), held);
    }
    // an ADD with the same container id must not replace the record
    let again = Pod {
        container: pod.container.clone(),
        netns: other.netns.clone(),
        ifname: pod.ifname,
    };
    let answer = kernel.run(&node, "ADD", Some(&again), &node.two_rails());
    let message = answer.must_fail(101);
    assert!(message.contains("attached already"), "{message}");
    assert_eq!(node.snapshot(), held);
    assert!(node.record_of(&pod).exists());
    // the pod's own DEL fails too, and the runtime tries again
    let answer = kernel.run(&node, "DEL", Some(&pod), &node.two_rails());
    assert_ne!(answer.code(), 0);
    assert_eq!(node.snapshot(), held);
    node.del(&pod, &node.two_rails()).must_succeed();
    node.must_be(&before, "after DEL");
}

#[test]
fn a_recorded_path_that_now_leads_to_the_host_blocks_nothing() {
    for given in ["/proc/1/ns/net", "/run/netns/a"] {
        let node = Node::new(RdmaMode::Exclusive);
        let before = node.snapshot();
        let mut pod = node.pod("a");
        node.add(&pod, &node.two_rails()).must_succeed();
        node.kernel.with(|world| world.unmount(&pod.netns));
        // the pod's path was /proc/PID/ns/net, and the PID now belongs to a process of the host
        let record = node.record_of(&pod);
        let text = fs::read_to_string(&record).unwrap();
        let mut value: Value = serde_json::from_str(&text).unwrap();
        value["netns"] = json!("/proc/1/ns/net");
        fs::write(&record, value.to_string()).unwrap();
        pod.netns = given.into();
        node.del(&pod, &node.two_rails()).must_succeed();
        node.must_be(&before, given);
    }
}

#[test]
fn gc_and_add_restore_what_has_a_path_to_the_host() {
    for restorer in ["GC", "ADD"] {
        let node = Node::new(RdmaMode::Exclusive);
        let other = node.pod("b");
        let before = node.snapshot();
        let pod = node.pod("a");
        node.add(&pod, &node.two_rails()).must_succeed();
        node.kernel.with(|world| world.unmount(&pod.netns));
        let record = node.record_of(&pod);
        let text = fs::read_to_string(&record).unwrap();
        fs::write(&record, text.replace("/run/netns/a", "/proc/1/ns/net")).unwrap();
        match restorer {
            "GC" => drop(node.gc(&[], &node.two_rails()).must_succeed()),
            _ => {
                node.add(&other, &node.two_rails()).must_succeed();
                node.del(&other, &node.two_rails()).must_succeed();
            }
        }
        node.must_be(&before, restorer);
    }
}
