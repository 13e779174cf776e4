// SPDX-License-Identifier: Apache-2.0
//! Tests of a chain that contains the entry of `rdma-cni` twice: in the network's list, and in the
//! network's directory.

use crate::node::{Node, Pod};
use rdma_netns::RdmaMode;
use serde_json::{Value, json};

/// Returns the result of the plugin before `rdma-cni`.
fn first(pod: &Pod) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "interfaces": [{ "name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": pod.netns }],
        "ips": [{ "address": "10.1.0.5/16", "interface": 0 }],
        "dns": {},
    })
}

/// Returns `config` with the previous plugin's `result`. libcni passes only the fields of the result that it knows.
fn behind(config: &Value, result: &Value) -> Value {
    let (mut config, mut result) = (config.clone(), result.clone());
    result.as_object_mut().expect("a result").remove("rails");
    config["prevResult"] = result;
    config
}

#[test]
fn the_second_call_passes_the_result_on() {
    for (mode, sharing) in [
        (RdmaMode::Exclusive, "move"),
        (RdmaMode::Shared, "move"),
        (RdmaMode::Shared, "share"),
    ] {
        let node = Node::new(mode);
        let pod = node.pod("a");
        let before = node.snapshot();
        let mut config = node.two_rails();
        config["mode"] = sharing.into();
        let result = node
            .add(&pod, &behind(&config, &first(&pod)))
            .must_succeed();
        assert_eq!(result["interfaces"][2]["name"], "rdma1", "{result}");
        let attached = node.snapshot();
        let second = behind(&config, &result);
        let passed_on = node.add(&pod, &second).must_succeed();
        assert_eq!(passed_on, second["prevResult"]);
        assert!(
            node.snapshot() == attached,
            "the second call changed something"
        );
        for _ in 0..2 {
            node.run("CHECK", Some(&pod), &second).must_succeed();
        }
        for time in ["once", "twice"] {
            node.del(&pod, &second).must_succeed();
            node.must_be(&before, time);
        }
    }
}

/// The runtime begins again with the first plugin, so `prevResult` has no rails.
#[test]
fn an_add_that_is_repeated_needs_a_del() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let config = behind(&node.two_rails(), &first(&pod));
    node.add(&pod, &config).must_succeed();
    let message = node.add(&pod, &config).must_fail(101);
    assert!(message.contains("call DEL"), "{message}");
    node.add(&pod, &node.two_rails()).must_fail(101);
}

/// The second entry requests other devices or interface names. `rdma-cni` must report this mistake.
#[test]
fn another_request_is_not_passed_on() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let result = node
        .add(&pod, &behind(&node.one_rail(), &first(&pod)))
        .must_succeed();
    node.add(&pod, &behind(&node.two_rails(), &result))
        .must_fail(101);
    let mut renamed = node.one_rail();
    renamed["interfaceName"] = "rail%d".into();
    node.add(&pod, &behind(&renamed, &result)).must_fail(101);
    // a result that describes another pod
    let mut other = behind(&node.one_rail(), &result);
    other["prevResult"]["interfaces"][1]["sandbox"] = "/run/netns/other".into();
    node.add(&pod, &other).must_fail(101);
    node.add(&pod, &behind(&node.one_rail(), &result))
        .must_succeed();
}
