// SPDX-License-Identifier: Apache-2.0
//! SMC-R that is not possible, with the real binary: an error, or one log line.

use integration::{Netns, Node, Snapshot};
use serde_json::json;
use std::fs;

fn node_and_pod() -> (Node, Netns, Snapshot) {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    (node, pod, before)
}

/// This machine has no RDMA device, and in most cases no SMC.
#[test]
fn smc_that_is_required_and_cannot_be_had_changes_nothing() {
    let (node, pod, before) = node_and_pod();
    let mut configuration = node.configuration(&["eth1"]);
    configuration["smcr"] = "on".into();
    let text = node
        .invoke("ADD", "a", pod.path())
        .input(&configuration)
        .run()
        .error(102);
    assert!(text.contains("SMC-R: "), "{text}");
    assert!(text.contains("nothing was changed"), "{text}");
    before.assert_restored(&node.host);
    assert!(node.records().is_empty(), "a record was left");
}

#[test]
fn a_pod_that_requests_smc_in_vain_is_reported_once_and_starts() {
    let (node, pod, before) = node_and_pod();
    let mut configuration = node.configuration(&["eth1"]);
    let log = node.directory().join("smc.log");
    configuration["log"] = json!({ "level": "warn", "file": log });
    configuration["runtimeConfig"] = json!({
        "io.kubernetes.cri.pod-annotations": { "network.alibabacloud.com/erdma-smcr": "true" },
    });
    let add = node.invoke("ADD", "a", pod.path()).input(&configuration);
    add.run().result();
    let text = fs::read_to_string(&log).expect("the log");
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("SMC")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    assert!(lines[0].contains("the pod's connections use TCP"), "{text}");
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
    assert!(node.records().is_empty(), "a record was left");
}
