// SPDX-License-Identifier: Apache-2.0
//! The chart, installed by Helm itself.

use super::{
    Before, PAGE,
    pods::{self, PAIR},
};
use integration::{
    Cluster,
    container_runtime::{installed::records, shared::has_all_rails},
    control_plane::nodes::NODE,
    pages, real_kubelet,
};
use serde_json::Value;

const CHART: &str = "rdma conf/helm/rdma-device-plugin --namespace kube-system";

/// Pods of the namespace `kube-system`. All of them belong to the chart.
const SYSTEM: &str = "/api/v1/namespaces/kube-system/pods";

fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().expect("a name")
}

/// Installs the chart, upgrades it and rolls it back while pods with RDMA run, and removes it.
pub(super) fn is_installed_upgraded_and_removed_below_pods() {
    let mut cluster = Cluster::new();
    let before = Before::of(&cluster.nics.host);
    cluster.types(&format!(
        "kubectl label node {NODE} aliyun.accelerator/rdma=true"
    ));
    cluster.types(&format!(
        "helm install {CHART} --set enableNonHostNetwork=true --wait --timeout 10m"
    ));
    // --wait has waited for the daemon
    cluster.types("kubectl -n kube-system rollout status ds/ack-rdma-dp-ds --watch=false");
    cluster.until("the node has ids", Cluster::has_ids);
    let [server, client] = pods::of_the_example_have_all_rails(&mut cluster);

    let gaps = real_kubelet::log().matches(super::upgrade::NO_IDS).count();
    cluster.types(&format!(
        "helm upgrade {CHART} --reuse-values --set logLevel=debug --wait --timeout 10m"
    ));
    let pair = [&server, &client];
    pods::are_the_same(&mut cluster, &pair);
    cluster.types("helm rollback rdma --namespace kube-system --wait --timeout 10m");
    let revision = "helm history rdma --namespace kube-system --max 1 --output json";
    let revision: Value = serde_json::from_str(&cluster.types(revision)).expect("JSON");
    assert_eq!(revision[0]["description"], "Rollback to 1", "{revision:#}");
    pods::are_the_same(&mut cluster, &pair);
    let after = real_kubelet::log().matches(super::upgrade::NO_IDS).count();
    assert_eq!(after, gaps, "kubelet had no ids");

    let lines = pages::commands(PAGE, "Removal", "helm");
    let [off, status, uninstall] = &lines[..] else {
        panic!("{lines:?}");
    };
    cluster.types(off);
    cluster.until("uninstall waits below running pods", |it| {
        let pods = it.list(SYSTEM);
        let [pod] = &pods[..] else {
            return false;
        };
        let log = it.plane.ask(&format!("{SYSTEM}/{}/log", name(pod)));
        log.is_some_and(|it| {
            PAIR.iter()
                .all(|name| it.contains(&format!("default/{name}")))
        })
    });
    cluster.report("uninstall waits below running pods");
    pair.iter().for_each(|pod| has_all_rails(pod));
    pods::end(&mut cluster, pair);
    cluster.types(status);
    cluster.types(uninstall);
    cluster.until("the chart's pods are gone", |it| it.list(SYSTEM).is_empty());
    assert!(records().is_empty(), "{:?}", records());
    before.assert_restored(&cluster.nics.host);
}
