// SPDX-License-Identifier: Apache-2.0
//! What ib-sriov-cni has and this plugin does not: refused by name, never dropped.

use crate::node::Node;
use rdma_netns::RdmaMode;
use serde_json::{Value, json};

fn with(config: &Value, more: &Value) -> Value {
    let mut config = config.clone();
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

#[test]
fn the_field_is_refused_by_name_and_keeps_nothing_from_the_host() {
    let node = Node::new(RdmaMode::Exclusive);
    let plain = node.one_rail();
    let (pod, other) = (node.pod("a"), node.pod("b"));
    let before = node.snapshot();
    let result = node.add(&pod, &plain).must_succeed();
    let added = node.snapshot();
    let config = with(&plain, &json!({ "pkey": "0x8001" }));
    let behind = with(&config, &json!({ "prevResult": result }));
    for (verb, pod, config) in [
        ("ADD", &other, &config),
        ("STATUS", &pod, &config),
        ("CHECK", &pod, &behind),
    ] {
        let message = node.run(verb, Some(pod), config).must_fail(2);
        assert!(message.starts_with("pkey: "), "{verb}: {message}");
        assert!(message.contains("is not supported"), "{message}");
    }
    assert_eq!(added.differences(&node.snapshot()), [] as [&str; 0]);
    node.gc(&[&pod], &config).must_succeed();
    // it was configured after the pod had come
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after DEL");
}

/// In the list that is handed to each of its plugins, and in what the runtime leaves empty.
#[test]
fn what_is_another_plugins_or_empty_is_no_field_of_this_one() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let before = node.snapshot();
    let behind = json!({
        "args": { "cni": { "mac": "02:00:00:00:00:01", "guid": "00:11:22:33:44:55:66:77" } },
        "prevResult": {
            "cniVersion": "1.1.0",
            "interfaces": [{ "name": "eth0", "sandbox": pod.netns }],
        },
    });
    let empty = json!({ "mac": "", "vlan": null, "runtimeConfig": { "mac": "" } });
    for more in [behind, empty] {
        let config = with(&node.one_rail(), &more);
        node.add(&pod, &config).must_succeed();
        node.del(&pod, &config).must_succeed();
        node.must_be(&before, "after DEL");
    }
}
