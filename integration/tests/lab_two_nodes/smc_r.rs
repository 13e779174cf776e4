// SPDX-License-Identifier: Apache-2.0
//! TCP connections of annotated pods by SMC-R, between nodes.

use super::{gone, spec, start_as};
use integration::{
    Cluster, Netns,
    cluster::traffic,
    control_plane::nodes::{FIRST, SECOND},
    smc::{active, pods::UEID, shown},
    wait,
};
use serde_json::{Value, json};
use std::{path::PathBuf, thread, time::Duration};

/// The manifest's address configuration, and a configuration with addresses that SMC-Rv2 accepts: IPv4, in no prefix of
/// the node. Both nodes assign addresses from the same range; the probe keeps them different.
const ADDRESSES: [&str; 2] = [
    r#""from": "parent","#,
    r#""ranges": [[{"subnet": "10.40.0.0/24"}]],"#,
];

/// Number of attempts for a connection that falls back to TCP: a busy client may miss the link's confirmation
/// (docs/dev/smc-r-kernel.md).
const TRIES: usize = 3;

/// The command that applies the manifest with the IPv4 addresses and the user EID.
pub(super) fn line() -> String {
    let [from, to] = ADDRESSES;
    let plugin = format!(r#""plugin": {{ "smcUeid": "{UEID}","#);
    format!(
        "sed -e 's|{from}|{to}|' -e 's|\"plugin\": {{|{plugin}|' conf/manifests/lingjun.yaml | kubectl apply -f -"
    )
}

/// A pod on each node: connections to a rail's address use SMC-R, and connections to the primary interface's address
/// stay TCP.
pub(super) fn carries_connections_of_annotated_pods(cluster: &mut Cluster) {
    let peer = PathBuf::from(env!("CARGO_BIN_EXE_smc-peer"));
    for (name, node) in [("serves", SECOND), ("asks", FIRST)] {
        let mut pod = spec();
        pod["volumes"] = json!([{"name": "peer", "hostPath": {"path": peer, "type": "File"}}]);
        pod["containers"][0]["volumeMounts"] = json!([{"name": "peer", "mountPath": peer}]);
        let annotations = json!({"network.alibabacloud.com/erdma-smcr": "true"});
        start_as(cluster, name, node, pod, &annotations);
    }
    let netns = cluster.pod("asks").netns();
    let primary = cluster.get("/api/v1/namespaces/default/pods/serves");
    let primary = primary["status"]["podIP"].as_str().expect("an address");
    let rail = traffic::address_of(cluster, "serves", "-4", "rdma0");
    for (address, mode) in [(rail.as_str(), "smcr"), (primary, "tcp")] {
        // a connection that must stay TCP must never use SMC-R
        let tries = if mode == "smcr" { TRIES } else { 1 };
        let carried = (0..tries)
            .any(|_| connect(cluster, &netns, &peer.display().to_string(), address) == mode);
        assert!(carried, "{address}, not {mode}: {}", shown(&netns));
    }
    gone(cluster, &["serves", "asks"]);
    cluster.report("SMC-R from node to node");
}

/// Returns the mode of a connection from the pod `asks`, whose namespace is `netns`, to `address` of the pod `serves`.
/// The connection has carried 1 MiB in each direction.
#[track_caller]
fn connect(cluster: &Cluster, netns: &Netns, program: &str, address: &str) -> String {
    let exec = |pod: &str, line: &str| format!("kubectl exec {pod} -- sh -c '{line}'");
    let serving = exec(
        "serves",
        &format!("sleep 600 | {program} server --hold {address}:7000"),
    );
    let asking = exec(
        "asks",
        &format!("sleep 600 | {program} client --bytes 1048576 --hold {address}:7000"),
    );
    thread::scope(|scope| {
        let served = scope.spawn(|| cluster.tries(&serving));
        let listens = wait::within(Duration::from_secs(240), || {
            thread::sleep(Duration::from_millis(300));
            let line = exec("serves", "ss -Hltn");
            let output = cluster.plane.try_shell(&line).stdout;
            String::from_utf8_lossy(&output).contains(&format!("{address}:7000 "))
        });
        assert!(listens, "{serving} does not listen");
        let client = scope.spawn(|| cluster.tries(&asking));
        let mut connections: Vec<Value> = vec![];
        wait::until("there is a connection", || {
            connections = active(netns);
            !connections.is_empty()
        });
        // ends the standard input of server and client, which end then; the container's first process ignores the
        // signal
        for pod in ["asks", "serves"] {
            cluster.types(&exec(pod, "killall sleep"));
        }
        let output = client.join().expect("the client ended").stdout;
        let output = String::from_utf8_lossy(&output);
        assert!(output.contains("equal"), "{output}");
        served.join().expect("the server ended");
        connections[0]["mode"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    })
}
