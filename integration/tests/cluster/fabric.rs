// SPDX-License-Identifier: Apache-2.0
//! The fabric watch on a real API server, with the token, role and policy of the chart.

use super::{
    manifests,
    refused::{name, uid},
    text,
};
use integration::{
    ControlPlane, Daemon, Machine, daemon::rdma_device_plugin, machine::NIC, stopwatch::Stopwatch,
};
use rdma_resources::Published;
use serde_json::json;
use std::fs;

const CHART: &str = "integration/manifests/rendered/fabric.yaml";

/// Text in the policy's refusal.
const OWN_NODE: &str = "writes the ConfigMap of its own node only";

/// The token can write one ConfigMap, which is deleted with the node. The watch writes this ConfigMap, and lists
/// those of other nodes.
pub(super) fn writes_the_config_map_of_its_node(cluster: &mut ControlPlane) {
    // without the objects of the Prometheus operator, which another test covers
    let chart = text(CHART);
    let objects = chart.split("---\n");
    let objects = objects.filter(|it| !it.contains("kind: PodMonitor"));
    let chart = objects.collect::<Vec<_>>().join("---\n");
    cluster.apply("apply --server-side --validate=strict -f -", &chart);
    manifests::roll_out(cluster, "rdma-fabric", 1);
    let pods = cluster.get("pods -n kube-system -l app.kubernetes.io/name=rdma-fabric");
    let line = format!(
        "-n kube-system create token rdma-fabric --bound-object-kind Pod --bound-object-name {}",
        name(&pods[0])
    );
    let token = cluster.kubectl(&line).trim().to_owned();
    let tried = |it: &ControlPlane, line: &str| {
        let done = it.kubectl_as(&token, &format!("-n kube-system {line}"));
        (
            done.status.success(),
            String::from_utf8_lossy(&done.stderr).into_owned(),
        )
    };
    let create = |node: &str| format!("create configmap {node} --dry-run=server");
    cluster.until("the policy counts", |it| {
        tried(it, &create("rdma-fabric-plain-1"))
            .1
            .contains(OWN_NODE)
    });
    assert!(tried(cluster, &create("rdma-fabric-rdma-1")).0);
    for (line, words) in [
        (create("another"), OWN_NODE),
        ("delete configmap rdma-devices".to_owned(), OWN_NODE),
        ("get secrets".to_owned(), "Forbidden"),
        ("get configmaps -A".to_owned(), "Forbidden"),
    ] {
        let (is_done, message) = tried(cluster, &line);
        assert!(!is_done && message.contains(words), "{line}: {message}");
    }

    let machine = Machine::with(&[NIC]);
    fs::create_dir(machine.path("account")).expect("a directory");
    machine.write("account/ca.crt", &cluster.ca());
    machine.write("account/token", &token);
    let published = json!({"format": 2, "resources": {
        "rdma/hca": {"sharing": "shared", "every": [NIC.address]},
    }});
    let published: Published = serde_json::from_value(published).expect("resources");
    published.write(&machine.path("state")).expect("written");
    let mut command = cluster.command(&rdma_device_plugin());
    command.args(["fabric", "--namespace=kube-system", "--interval=1"]);
    for (flag, below) in [
        ("--service-account-dir", "account"),
        ("--state-dir", "state"),
        ("--sysfs", "sys"),
        ("--dev", "dev"),
    ] {
        command.arg(flag).arg(machine.path(below));
    }
    let (host, port) = cluster.address();
    command.env("KUBERNETES_SERVICE_HOST", host);
    command.env("KUBERNETES_SERVICE_PORT", port.to_string());
    let watch = Daemon::start(&mut command);
    std::thread::sleep(std::time::Duration::from_secs(4));
    let own = "configmaps -n kube-system -l rdma-fabric-group";
    cluster.until("its rails are there", |it| it.get(own).len() == 1);
    let found = cluster.get(own).remove(0);
    assert_eq!(name(&found), "rdma-fabric-rdma-1");
    let node = cluster.get("node rdma-1").remove(0);
    assert_eq!(found["metadata"]["ownerReferences"][0]["uid"], uid(&node));
    let rails = found["data"]["rails"].as_str().expect("a text");
    assert!(rails.contains("\"device\":\"mlx5_0\""), "{rails}");
    // the watch removes the rail of a NIC that is gone
    machine.unplug(&NIC);
    cluster.until("its rail is gone", |it| {
        it.get(own)[0]["data"]["rails"] == "[]"
    });
    let at = Stopwatch::start();
    cluster.until("it went on", |_| at.elapsed().as_secs() >= 3);
    assert_eq!(watch.count("not up to date"), 0);
    drop(watch);
    cluster.kubectl("-n kube-system delete configmap rdma-fabric-rdma-1");
    manifests::delete(cluster, &chart);
}
