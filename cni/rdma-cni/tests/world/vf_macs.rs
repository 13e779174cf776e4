// SPDX-License-Identifier: Apache-2.0
//! Tests of hardware addresses that pods request by `CNI_ARGS`.

use crate::node::{Answer, Node, Pod, mac, name};
use rdma_netns::{Op, RdmaMode, VfSetting};
use serde_json::{Value, json};

const OF_FIELD: &str = "02:00:00:00:00:01";
const OF_ARGS: &str = "02:00:00:00:00:02";
const OF_RUNTIME: &str = "02:00:00:00:00:03";

/// Runs `command` with the arguments that Multus passes at ADD for a pod that requests a hardware address
/// (`delegateAdd()`, `pkg/multus/multus.go` of k8snetworkplumbingwg/multus-cni). Multus does not pass them to other
/// verbs.
fn with_args(node: &Node, command: &str, pod: &Pod, config: &Value, address: &str) -> Answer {
    let args = format!("IgnoreUnknown=true;K8S_POD_NAME=a;MAC={address}");
    let mut output = vec![];
    node.run_on(
        &node.kernel,
        command,
        Some(pod),
        config,
        Some(&args),
        &mut output,
    );
    let value = serde_json::from_slice(&output).unwrap_or(Value::Null);
    Answer { value }
}

fn with(config: &Value, more: Value) -> Value {
    let mut config = config.clone();
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// Returns the configuration of one rail whose pods may choose their hardware address.
fn allowed(node: &Node) -> Value {
    with(&node.one_rail(), json!({ "podArguments": ["mac"] }))
}

/// Without the capability `mac`, Multus passes the request only in `CNI_ARGS`. The order of precedence is sriov-cni's
/// (`CmdAdd()`, `pkg/cnicommands/cni.go`). Only the position of `args.cni` in this order is `rdma-cni`'s own choice.
#[test]
fn a_pod_requests_its_hardware_address_by_the_arguments() {
    let runtime = json!({ "runtimeConfig": { "mac": OF_RUNTIME } });
    let field = json!({ "mac": OF_FIELD });
    let cni = json!({ "args": { "cni": { "mac": OF_FIELD } } });
    let empty = json!({ "runtimeConfig": { "mac": "" } });
    for (more, expected) in [
        (json!({}), OF_ARGS),
        (field, OF_ARGS),
        (cni, OF_ARGS),
        (empty, OF_ARGS),
        (runtime, OF_RUNTIME),
    ] {
        let node = Node::new(RdmaMode::Exclusive);
        let (pod, config) = (node.pod("a"), with(&allowed(&node), more));
        let before = node.snapshot();
        let result = with_args(&node, "ADD", &pod, &config, OF_ARGS).must_succeed();
        assert_eq!(result["interfaces"][0]["mac"], expected, "{config}");
        let journal = node.kernel.journal();
        let set = journal.iter().find_map(|op| match op {
            Op::SetVf {
                setting: VfSetting::Mac(mac),
                ..
            } => Some(mac.clone()),
            _ => None,
        });
        assert_eq!(set, Some(mac(expected)));
        // other verbs lack the argument: they use the address that the pod requested at ADD
        let checked = with(&config, json!({ "prevResult": result }));
        node.run("CHECK", Some(&pod), &checked).must_succeed();
        node.del(&pod, &config).must_succeed();
        node.must_be(&before, "after DEL");
    }
}

/// Without `podArguments`, a request by the runtime, by `CNI_ARGS` or by Multus' `cni-args` is ignored.
#[test]
fn a_pods_request_is_ignored_where_the_operator_does_not_allow_it() {
    let nonsense = json!({ "runtimeConfig": { "mac": 5, "infinibandGUID": "x" } });
    for (more, args) in [
        (json!({}), OF_ARGS),
        (json!({ "podArguments": ["guid"] }), OF_ARGS),
        (json!({ "podArguments": [] }), "nonsense"),
        (json!({ "runtimeConfig": { "mac": OF_RUNTIME } }), ""),
        (json!({ "args": { "cni": { "mac": OF_RUNTIME } } }), ""),
        (nonsense, ""),
    ] {
        let node = Node::new(RdmaMode::Exclusive);
        let own = node.kernel.with(|it| {
            it.observe(None)
                .host
                .link(&name("eth2"))
                .unwrap()
                .mac
                .clone()
        });
        for (field, expected) in [
            (json!({}), own.to_string()),
            (json!({ "mac": OF_FIELD }), OF_FIELD.to_owned()),
        ] {
            let pod = node.pod("a");
            let config = with(&with(&node.one_rail(), more.clone()), field);
            let result = with_args(&node, "ADD", &pod, &config, args).must_succeed();
            assert_eq!(result["interfaces"][0]["mac"], expected, "{config}");
            node.del(&pod, &config).must_succeed();
        }
    }
    let node = Node::new(RdmaMode::Exclusive);
    let config = with(&node.one_rail(), json!({ "podArguments": ["vlan"] }));
    let message = node.add(&node.pod("a"), &config).must_fail(7);
    assert!(
        message.contains("podArguments[0]: \"vlan\" is not valid"),
        "{message}"
    );
}

/// `rdma-cni` replaces a plugin that always accepts the address.
#[test]
fn under_the_name_of_sriov_cni_a_pods_address_is_accepted() {
    for plugin in ["sriov", "ib-sriov"] {
        let node = Node::new(RdmaMode::Exclusive);
        let (pod, config) = (
            node.pod("a"),
            with(&node.one_rail(), json!({ "type": plugin })),
        );
        let result = with_args(&node, "ADD", &pod, &config, OF_ARGS).must_succeed();
        assert_eq!(result["interfaces"][0]["mac"], OF_ARGS, "{plugin}");
    }
}

/// sriov-cni accepts these formats, because it uses Go's `net.ParseMAC`.
#[test]
fn an_address_may_be_written_with_hyphens_and_with_dots() {
    for text in ["02-00-00-00-00-0A", "0200.0000.000a"] {
        let node = Node::new(RdmaMode::Exclusive);
        let (pod, config) = (
            node.pod("a"),
            with(&node.one_rail(), json!({ "mac": text })),
        );
        let result = node.add(&pod, &config).must_succeed();
        assert_eq!(result["interfaces"][0]["mac"], "02:00:00:00:00:0a");
    }
    for text in [
        "02-00:00-00-00-0a",
        "0200.0000.00a",
        "0200.0000",
        "020.00000.000a",
        "\u{e9}0.0000.0000",
    ] {
        let node = Node::new(RdmaMode::Exclusive);
        let config = with(&node.one_rail(), json!({ "mac": text }));
        node.add(&node.pod("a"), &config).must_fail(7);
    }
}

/// All plugins of a list get the same `CNI_ARGS`. The address is for the interface that the first plugin makes.
#[test]
fn behind_another_plugin_the_arguments_are_that_ones() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let allowed = allowed(&node);
    let previous = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "eth0", "sandbox": pod.netns }],
    });
    let config = with(&allowed, json!({ "prevResult": previous }));
    for address in [OF_ARGS, "no address"] {
        with_args(&node, "ADD", &pod, &config, address).must_succeed();
        let journal = node.kernel.journal();
        assert!(
            !journal.iter().any(crate::vf::sets_up_function),
            "{journal:?}"
        );
        node.del(&pod, &config).must_succeed();
    }
}

#[test]
fn a_wrong_address_of_the_arguments_is_refused_by_add_and_passed_over_by_del() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, config) = (node.pod("a"), allowed(&node));
    let before = node.snapshot();
    let message = with_args(&node, "ADD", &pod, &config, "01:00:5e:00:00:01").must_fail(7);
    let expected = "CNI_ARGS: MAC: \"01:00:5e:00:00:01\" is not valid: must be a nonzero unicast Ethernet address such \
                    as 02:00:00:00:00:01";
    assert_eq!(message, expected);
    node.must_be(&before, "refused");
    with_args(&node, "ADD", &pod, &config, "").must_succeed();
    with_args(&node, "DEL", &pod, &config, "zz").must_succeed();
    node.must_be(&before, "after DEL");
}

/// ADD fails instead of ignoring the request.
#[test]
fn an_address_that_cannot_be_set_is_refused_by_name() {
    let node = Node::new(RdmaMode::Shared);
    let pod = node.pod("a");
    let before = node.snapshot();
    let shared = with(&allowed(&node), json!({ "mode": "share" }));
    let several = with(&node.two_rails(), json!({ "podArguments": ["mac"] }));
    for (config, reason) in [
        (
            shared,
            "mac: eth2 cannot have these settings: pods get children",
        ),
        (
            several,
            "mac: eth2 cannot have these settings: the pod has several rails",
        ),
    ] {
        let message = with_args(&node, "ADD", &pod, &config, OF_ARGS).must_fail(7);
        assert!(message.contains(reason), "{message}");
        node.must_be(&before, reason);
    }
}
