// SPDX-License-Identifier: Apache-2.0
//! Tests of fields for virtual functions that belong to another plugin, or that are empty.

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

/// Each plugin of a list gets the fields that are meant for an earlier plugin. The runtime can leave fields empty.
#[test]
fn foreign_and_empty_vf_fields_are_ignored() {
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
    let empty = json!({
        "mac": "", "vlan": null, "guid": "", "pkey": "",
        "runtimeConfig": { "mac": "", "infinibandGUID": "" },
    });
    for more in [behind, empty] {
        let config = with(&node.one_rail(), &more);
        node.add(&pod, &config).must_succeed();
        node.del(&pod, &config).must_succeed();
        node.must_be(&before, "after DEL");
    }
}
