// SPDX-License-Identifier: Apache-2.0
//! `kubectl rdma`, called by `kubectl` itself. It reads objects of the API server that the daemon wrote. No kubelet
//! runs here, so the plugin can query a daemon only in the lab's cluster.

use integration::ControlPlane;
use serde_json::{Value, json};

/// Exit code, output and errors of a command line.
#[track_caller]
fn typed(cluster: &ControlPlane, line: &str) -> (Option<i32>, String, String) {
    let output = cluster.try_shell(line);
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// Expects the node condition, and the event for the pod `trainer`, that the daemon of `rdma-1` has written.
pub(super) fn shows_conditions_and_events(cluster: &ControlPlane) {
    let (code, table, errors) = typed(cluster, "kubectl rdma nodes");
    let words: Vec<&str> = table.split_whitespace().collect();
    let expected = [
        "NAME",
        "DAEMON",
        "RESOURCES",
        "RAILS",
        "HEALTH",
        "rdma-1",
        "Ready",
        "-",
        "-",
        "DeviceGone:",
    ];
    assert_eq!(words[..10], expected, "{table}");
    assert!(
        table.contains("0000:af:00.0 (mlx5_1) is no longer on this node"),
        "{table}"
    );
    // the plugin also queries the daemon, which has no kubelet here
    let is_one_sentence = errors.starts_with("kubectl-rdma: kubectl exec --namespace kube-system")
        && errors.lines().count() == 1;
    assert!(is_one_sentence, "{errors}");
    assert_eq!(code, Some(1));

    let (code, output, errors) = typed(cluster, "kubectl rdma doctor trainer");
    assert!(
        output.contains("event RdmaRailLost: rails that are unusable: mlx5_1"),
        "{output}"
    );
    assert_eq!((code, errors.is_empty()), (Some(1), false));
    let (code, output, _) = typed(cluster, "kubectl rdma doctor rdma-1");
    assert!(
        output.starts_with("condition DeviceGone: 1 of 2"),
        "{output}"
    );
    assert_eq!(code, Some(1));

    for (line, words) in [
        ("doctor default/nobody", "pods \"nobody\" not found"),
        ("ping nobody 192.0.2.1", "pods \"nobody\" not found"),
        ("nodes --as nobody", "cannot list resource \"pods\""),
        ("nodes --context nowhere", "nowhere"),
    ] {
        let (code, output, errors) = typed(cluster, &format!("kubectl rdma {line}"));
        assert_eq!((code, output.as_str()), (Some(1), ""), "{line}");
        assert!(errors.contains(words), "{line}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{line}: {errors}");
    }
}

/// Expects the counts of the slices of two NICs that the daemon of `node` has written.
pub(super) fn counts_the_devices_of_slices(cluster: &ControlPlane, node: &str, resource: &str) {
    let (_, text, _) = typed(cluster, "kubectl rdma nodes -o json");
    let nodes: Value = serde_json::from_str(&text).expect("JSON");
    let nic = json!({"allocatable": null, "capacity": null});
    let expected = json!([{
        "name": node, "daemon": "Ready", "resources": {resource: nic}, "rails": 2, "tainted": 0,
        "health": "not known",
    }]);
    assert_eq!(nodes, expected);
}
