// SPDX-License-Identifier: Apache-2.0
//! `kubectl rdma` while the example's pods run. The daemon answers through the API server and kubelet, and a pod
//! pings.

use super::pods::PAIR;
use integration::{
    Cluster,
    cluster::{claims::DAEMONS, traffic},
    container_runtime::shared::IDS,
    control_plane::nodes::NODE,
};
use serde_json::{Value, json};

/// The exit code and the output of a command line. Asserts that the plugin itself prints no error.
#[track_caller]
fn typed(cluster: &Cluster, line: &str) -> (Option<i32>, String) {
    let output = cluster.tries(&format!("kubectl rdma {line}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!errors.contains("kubectl-rdma: "), "{line}: {errors}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    (output.status.code(), text)
}

pub(super) fn shows_the_node_and_its_pods(cluster: &Cluster) {
    let (code, text) = typed(cluster, "nodes -o json");
    let nodes: Value = serde_json::from_str(&text).expect("JSON");
    let hca = json!({"rdma/hca": {"allocatable": IDS.to_string(), "capacity": IDS.to_string()}});
    assert_eq!(nodes[0]["name"], NODE);
    assert_eq!(nodes[0]["daemon"], "Ready");
    assert_eq!(nodes[0]["resources"], hca);
    assert_eq!(
        (code, &nodes[0]["rails"]),
        (Some(0), &json!(2)),
        "{nodes:#}"
    );

    let (code, text) = typed(cluster, "pods -n default -o json");
    let rails: Value = serde_json::from_str(&text).expect("JSON");
    let rails = rails.as_array().expect("a list");
    assert_eq!((code, rails.len()), (Some(0), 2 * PAIR.len()), "{text}");
    for (index, rail) in rails.iter().enumerate() {
        let (pod, number) = (PAIR[index / 2], index % 2);
        assert_eq!((&rail["name"], &rail["node"]), (&json!(pod), &json!(NODE)));
        assert_eq!(rail["rail"], format!("rdma{number}"));
        let address = &rail["addresses"][0];
        assert_eq!(address["address"], traffic::address(cluster, pod, number));
        assert_eq!(
            address["gidIndex"],
            traffic::gid_index(cluster, pod, number)
        );
    }

    // `doctor` exits with 2 instead of 0 if the container hides facts from it
    let (code, text) = typed(cluster, &format!("doctor {NODE} -- --json"));
    assert!(matches!(code, Some(1 | 2)), "{code:?}: {text}");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let findings = report["findings"].as_array().expect("a list");
    let serves = json!("rdma-device-plugin serves rdma/hca");
    assert!(findings.iter().any(|it| it["what"] == serves), "{text}");
    let (code, report) = typed(cluster, &format!("doctor {}", PAIR[0]));
    assert_eq!(code, Some(0));
    assert!(
        report.contains("  rdma1: ") && report.contains(": GID index "),
        "{report}"
    );
}

/// Each rail of one pod reaches the same rail of the other pod. An unused address does not answer.
pub(super) fn pings_from_inside_a_pod(cluster: &mut Cluster) {
    let [from, to] = PAIR;
    let (code, output) = typed(
        cluster,
        &format!("ping {from} {to} -- --count 2 --timeout 10"),
    );
    assert_eq!(code, Some(0), "{output}");
    for rail in [0, 1] {
        let address = traffic::address(cluster, to, rail);
        assert!(
            output.contains(&format!("{address}: 2 sent, 2 answered")),
            "{output}"
        );
    }
    let (code, output) = typed(cluster, &format!("ping {from} 192.0.2.9 -- --count 1"));
    assert_eq!(code, Some(1), "{output}");
    cluster.until("the pods that pinged are gone", |it| {
        let pods = it.list(DAEMONS);
        let is_ping = |it: &Value| it["metadata"]["generateName"] == "rdma-ping-";
        !pods.iter().any(is_ping)
    });
}
