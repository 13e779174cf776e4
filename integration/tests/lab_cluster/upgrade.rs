// SPDX-License-Identifier: Apache-2.0
//! A new daemon replaces the old one while pods run and start.

use super::pods;
use integration::{
    Cluster,
    cluster::is_true,
    container_runtime::{
        Pod,
        installed::root,
        shared::{HCA, IDS, has_all_rails},
    },
    real_kubelet,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

/// The chart's manifest with a daemon that deletes refused pods.
const LATER: &str = "integration/manifests/rendered/refused-pods.yaml";

/// Text that kubelet (`markResourceUnhealthy` in `pkg/kubelet/cm/devicemanager/manager.go`) logs when it has no ids any
/// more.
pub(super) const NO_IDS: &str = "Mark all resources Unhealthy for resource";

/// Number of pods that start, one after the other, while the daemon is replaced.
const ARRIVING: usize = 3;

/// The time between the starts of two of these pods.
const BETWEEN: Duration = Duration::from_secs(4);

pub(super) fn daemons(cluster: &Cluster) -> Vec<Value> {
    let label = "labelSelector=app.kubernetes.io%2Fname%3Drdma-device-plugin";
    cluster.list(&format!("/api/v1/namespaces/kube-system/pods?{label}"))
}

/// The DaemonSet gets another template. The node has ids at every moment, pods that start meanwhile get their rails,
/// and older pods are not affected.
pub(super) fn goes_on_beside_pods(cluster: &mut Cluster, pair: &[&Pod; 2]) {
    let before = real_kubelet::log().matches(NO_IDS).count();
    let [old] = &daemons(cluster)[..] else {
        panic!("one daemon");
    };
    let old = old["metadata"]["uid"].clone();
    let names: Vec<String> = (0..ARRIVING).map(|it| format!("arriving-{it}")).collect();
    let is_done = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        let cluster = &*cluster;
        let watch = scope.spawn(|| {
            let mut seen = BTreeSet::new();
            while !is_done.load(Ordering::Relaxed) {
                seen.extend(cluster.allocatable(HCA));
                thread::sleep(Duration::from_millis(500));
            }
            seen
        });
        cluster.types(&format!(
            "kubectl apply -f {}",
            root().join(LATER).display()
        ));
        let arrive = scope.spawn(|| {
            for name in &names {
                cluster.make(pods::PODS, &pods::pod(name, &json!({HCA: 1})));
                thread::sleep(BETWEEN);
            }
        });
        cluster.types("kubectl -n kube-system rollout status ds/ack-rdma-dp-ds");
        arrive.join().expect("the pods are made");
        is_done.store(true, Ordering::Relaxed);
        watch.join().expect("a watch")
    });
    cluster.until("the old daemon has gone", |it| {
        let daemons = daemons(it);
        daemons.len() == 1 && is_true(&daemons[0], "Ready") && daemons[0]["metadata"]["uid"] != old
    });
    assert_eq!(seen, [IDS.to_string()].into());
    for name in &names {
        has_all_rails(&cluster.pod(name));
    }
    pods::are_the_same(cluster, pair);
    let after = real_kubelet::log().matches(NO_IDS).count();
    assert_eq!(after, before, "kubelet had no ids");
    cluster.report("the daemon was replaced beside pods");
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    cluster.delete(pods::PODS, &names);
}
