// SPDX-License-Identifier: Apache-2.0

use super::{api::Daemons, *};
use clap::CommandFactory;
use serde_json::json;

#[test]
fn the_command_line_is_kubectls() {
    Arguments::command().debug_assert();
    let parsed = |line: &str| Arguments::try_parse_from(line.split_whitespace());
    for line in [
        "kubectl-rdma nodes -o json --context=a",
        "kubectl-rdma --kubeconfig f pods -n team",
        "kubectl-rdma pods -A --as admin",
        "kubectl-rdma doctor node-1 -- --strict --json",
        "kubectl-rdma ping team/a 10.0.0.1 -n team -- --count 3",
    ] {
        assert!(parsed(line).is_ok(), "{line}");
    }
    for (line, words) in [
        ("kubectl-rdma", "Usage: kubectl rdma"),
        ("kubectl-rdma nodes -o yaml", "'yaml'"),
        ("kubectl-rdma pods -A -n team", "cannot be used with"),
        ("kubectl-rdma doctor", "<NODE|[NAMESPACE/]POD>"),
        ("kubectl-rdma ping a", "<[NAMESPACE/]POD|ADDRESS>"),
    ] {
        let error = parsed(line).expect_err(line).to_string();
        assert!(error.contains(words), "{line}: {error}");
    }
}

#[test]
fn a_nodes_daemon_is_the_one_that_is_ready() {
    let pod = |name: &str, node: &str, status: Value| json!({"metadata": {"name": name}, "spec": {"nodeName": node}, "status": status});
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let waits =
        json!({"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]});
    let mut old = pod("old", "a", ready.clone());
    old["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
    let list = json!({"items": [
        pod("new", "a", ready), old, pod("b", "b", waits), pod("c", "c", json!({})),
        pod("unplaced", "", json!({})),
    ]});
    let daemons = Daemons::of_list(&list).expect("daemons");
    let found = daemons
        .by_node()
        .map(|(node, it)| (node.as_str(), it.state()));
    assert_eq!(
        found.collect::<Vec<_>>(),
        [("a", "Ready"), ("b", "CrashLoopBackOff"), ("c", "NotReady")]
    );
    let none = Daemons::of_list(&json!({"items": []})).expect_err("no daemon");
    let expected = "no pod of the cluster has the label app.kubernetes.io/name=rdma-device-plugin";
    assert!(none.to_string().starts_with(expected), "{none}");
    let pod = |spec| Pod(json!({"metadata": {"namespace": "team", "name": "p"}, "spec": spec}));
    for (spec, expected) in [
        (json!({}), "pod team/p is on no node yet"),
        (json!({"nodeName": "d"}), "node d has no daemon"),
    ] {
        let error = daemons.of(&pod(spec)).expect_err("no daemon").to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn warnings_and_events_of_the_daemon_are_shown() {
    let event = |kind: &str, reason: &str, message: &str| json!({"type": kind, "reason": reason, "message": message});
    let events = json!({"items": [
        event("Normal", "Scheduled", "assigned"),
        event("Warning", "FailedCreatePodSandBox", "no\nroom"),
        event("Normal", "RdmaRailRecovered", "mlx5_0"),
    ]});
    assert_eq!(
        warnings(&events).as_deref(),
        Some("event FailedCreatePodSandBox: no\\nroom\nevent RdmaRailRecovered: mlx5_0\n")
    );
    assert_eq!(warnings(&json!({"items": []})), None);
}
