// SPDX-License-Identifier: Apache-2.0
//! Tests of networks of ib-kubernetes. ib-kubernetes supports only networks of type `ib-sriov`
//! (`GetIbSriovCniFromNetwork()`, `pkg/utils/utils.go` of Mellanox/ib-kubernetes), so the binary is installed
//! under this name.

use crate::{
    guids::{FUNCTION, GUID, must_be_as_before, node},
    node::Node,
};
use rdma_netns::{Op, RdmaMode, VfSetting};
use serde_json::{Value, json};

/// Returns the configuration that Multus passes for a pod whose `cni-args` are `args`: ib-sriov-cni's fields
/// (`README.md` of k8snetworkplumbingwg/ib-sriov-cni).
fn network(node: &Node, args: Value) -> Value {
    let mut config = node.config(json!({
        "type": "ib-sriov",
        "deviceID": FUNCTION,
        "pkey": "0x223F",
        "link_state": "enable",
        "rdmaIsolation": true,
        "ibKubernetesEnabled": true,
        "args": { "cni": args },
    }));
    config.as_object_mut().unwrap().remove("interfaceName");
    config
}

fn configured(guid: &str) -> Value {
    json!({ "mellanox.infiniband.app": "configured", "guid": guid })
}

/// Returns the GUIDs that the physical function set for the function.
fn guids_set(node: &Node) -> Vec<String> {
    let journal = node.kernel.journal();
    let set = journal.iter().filter_map(|op| match op {
        Op::SetVf {
            setting: setting @ (VfSetting::NodeGuid(_) | VfSetting::PortGuid(_)),
            ..
        } => Some(setting.to_string()),
        _ => None,
    });
    set.collect()
}

#[test]
fn a_pod_gets_the_guid_that_ib_kubernetes_gave_it() {
    let by_runtime = json!({ "mellanox.infiniband.app": "configured" });
    for (args, of_runtime) in [(configured(GUID), ""), (by_runtime, GUID)] {
        let node = node(RdmaMode::Exclusive);
        let pod = node.pod("a").attachment("net1");
        let mut config = network(&node, args);
        config["runtimeConfig"] = json!({ "infinibandGUID": of_runtime });
        let before = node.snapshot();
        let result = node.add(&pod, &config).must_succeed();
        assert_eq!(result["interfaces"][0]["name"], "net1");
        let expected = [format!("node_guid {GUID}"), format!("port_guid {GUID}")];
        assert_eq!(guids_set(&node), expected);
        node.del(&pod, &config).must_succeed();
        must_be_as_before(&node, &before, "after DEL");
    }
}

/// ADD fails without any change, so the runtime tries again. DEL works nevertheless.
#[test]
fn a_pod_that_ib_kubernetes_has_not_configured_yet_waits() {
    let other = json!({ "mellanox.infiniband.app": "", "guid": GUID });
    for args in [json!({}), json!({ "guid": GUID }), other, Value::Null] {
        let node = node(RdmaMode::Exclusive);
        let (pod, config) = (node.pod("a"), network(&node, args));
        let before = node.snapshot();
        let message = node.add(&pod, &config).must_fail(11);
        let expected = "ibKubernetesEnabled: ib-kubernetes, which serves networks of type ib-sriov, has not configured \
                        the pod yet: args.cni has no \"mellanox.infiniband.app\": \"configured\"";
        assert_eq!(message, expected);
        node.run("plan", Some(&pod), &config).must_fail(11);
        assert_eq!(node.kernel.journal(), [] as [Op; 0]);
        node.must_be(&before, "waits");
        node.del(&pod, &config).must_succeed();
        // then ib-kubernetes configures the pod
        let config = network(&node, configured(GUID));
        node.add(&pod, &config).must_succeed();
    }
}

#[test]
fn a_pod_that_was_configured_without_a_guid_is_refused() {
    let node = node(RdmaMode::Exclusive);
    let args = json!({ "mellanox.infiniband.app": "configured" });
    let (pod, config) = (node.pod("a"), network(&node, args));
    let before = node.snapshot();
    let message = node.add(&pod, &config).must_fail(7);
    let expected = "ibKubernetesEnabled: ib-kubernetes has configured the pod, but passed no GUID, neither in \
                    runtimeConfig.infinibandGUID nor in args.cni.guid";
    assert_eq!(message, expected);
    node.must_be(&before, "refused");
}

#[test]
fn without_ib_kubernetes_nothing_is_waited_for() {
    for enabled in [Value::Null, false.into()] {
        let node = node(RdmaMode::Exclusive);
        let (pod, mut config) = (node.pod("a"), network(&node, json!({})));
        config["ibKubernetesEnabled"] = enabled;
        node.add(&pod, &config).must_succeed();
        assert_eq!(guids_set(&node), [] as [&str; 0]);
    }
}
