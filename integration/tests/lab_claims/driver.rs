// SPDX-License-Identifier: Apache-2.0
//! The DRA driver replaces the device plugin, is itself replaced in a roll-out, and is away longer than kubelet waits
//! for it.

use super::{DEVICES, MANIFEST, claiming};
use integration::{
    Cluster,
    cluster::{
        claims::{PODS, daemon, devices, end, was_never_started_anew},
        is_true,
    },
    container_runtime::{
        Pod, TOOLS,
        installed::{records, root},
        shared::{HCA, has_all_rails},
    },
    control_plane::nodes::NODE,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{
    fs, thread,
    time::{Duration, Instant},
};

/// The label that selects the daemon's nodes.
const LABEL: &str = "aliyun.accelerator/rdma";

/// Kubelet removes a device plugin that has been away for five minutes (`endpointStopGracePeriod` in
/// `pkg/kubelet/cm/devicemanager/types.go`). Kubelet checks this every ten seconds.
const GRACE: Duration = Duration::from_secs(5 * 60 + 15);

/// The file in which kubelet's device manager stores its allocations.
const CHECKPOINT: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";

fn pod(name: &str) -> Value {
    let container = json!({
        "name": "main", "image": TOOLS, "command": ["sleep", "1000000"],
        "resources": {"limits": {HCA: 1}},
    });
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [container]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// Waits until the only daemon pod is ready, and is not the pod `before`.
#[track_caller]
fn until_another_than(cluster: &mut Cluster, before: &Value) {
    cluster.until("another daemon is ready", |it| {
        let now = daemon(it);
        now["metadata"]["uid"] != before["metadata"]["uid"] && is_true(&now, "Ready")
    });
}

/// A node whose resource the device plugin provided until now: an existing pod keeps its devices.
///
/// While kubelet (1.37.0) has ids of the resource, it refuses containers that have the resource by a claim
/// (`callPreStartContainerIfNeeded()` in `pkg/kubelet/cm/devicemanager/manager.go`). Therefore the existing pod ends
/// and kubelet restarts before the next pod starts. Returns the time of kubelet's start.
pub(super) fn takes_the_device_plugins_place(cluster: &mut Cluster) -> Instant {
    cluster.types(&format!("kubectl label node {NODE} {LABEL}=true"));
    cluster.types("kubectl apply --server-side -f conf/manifests/lingjun.yaml");
    cluster.until("the node has ids", Cluster::has_ids);
    cluster.make(PODS, &pod("of-ids"));
    let old = cluster.pod("of-ids");
    has_all_rails(&old);
    let before = daemon(cluster);
    let file = root().join(MANIFEST);
    cluster.types(&format!(
        "kubectl apply --server-side --validate=strict -f {}",
        file.display()
    ));
    until_another_than(cluster, &before);
    cluster.until("the slices are there", |it| devices(it).0 == DEVICES);
    cluster.until("the node has no ids", |it| {
        it.allocatable(HCA).is_none_or(|count| count == "0")
    });
    has_all_rails(&old);
    was_never_started_anew(cluster, "of-ids");
    end(cluster, &["of-ids"]);
    assert!(records().is_empty(), "{:?}", records());
    cluster.report("a pod of the device plugin has outlived it, and ended");
    cluster.kubelet.go(Signal::SIGTERM);
    cluster.kubelet.come();
    let started = Instant::now();
    cluster.until("the slices are there", |it| devices(it).0 == DEVICES);
    cluster.make(PODS, &pod("of-a-claim"));
    has_all_rails(&claiming(cluster, "of-a-claim"));
    cluster.report("the next one has a claim");
    end(cluster, &["of-a-claim"]);
    started
}

/// Kubelet removes the device plugin some time after kubelet's start at `started`. Then it still starts containers with
/// claims.
pub(super) fn outlives_the_device_plugin(cluster: &mut Cluster, started: Instant) {
    let left = GRACE.saturating_sub(started.elapsed());
    cluster.report(&format!(
        "{left:?} until kubelet has let the device plugin go"
    ));
    thread::sleep(left);
    cluster.until("kubelet has let the device plugin go", |_| {
        let checkpoint = fs::read_to_string(CHECKPOINT).expect("kubelet's checkpoint");
        let checkpoint: Value = serde_json::from_str(&checkpoint).expect("JSON");
        checkpoint["Data"]["RegisteredDevices"][HCA].is_null()
    });
    cluster.make(PODS, &pod("later"));
    has_all_rails(&claiming(cluster, "later"));
    cluster.report("a pod has come after the device plugin's time");
    end(cluster, &["later"]);
}

/// A new driver replaces the old one while a pod starts.
pub(super) fn is_rolled_out_below_pods(cluster: &mut Cluster, pods: &[&Pod]) {
    let (before, at) = (daemon(cluster), Instant::now());
    cluster.types("kubectl -n kube-system rollout restart ds/ack-rdma-dp-ds");
    cluster.make(PODS, &pod("meanwhile"));
    until_another_than(cluster, &before);
    cluster.report(&format!("another driver, {:?} later", at.elapsed()));
    has_all_rails(&claiming(cluster, "meanwhile"));
    for pod in pods {
        was_never_started_anew(cluster, &pod.name);
    }
    assert_eq!(devices(cluster).0, DEVICES);
    end(cluster, &["meanwhile"]);
}

/// The driver is away until kubelet has deleted the slices. Meanwhile, ending and starting pods wait, and running pods
/// continue.
pub(super) fn is_away_for_long(cluster: &mut Cluster, pods: &[&Pod]) {
    cluster.make(PODS, &pod("ends"));
    has_all_rails(&claiming(cluster, "ends"));
    cluster.types(&format!("kubectl label node {NODE} {LABEL}-"));
    cluster.until("the driver is gone", |it| daemon(it).is_null());
    cluster.until("kubelet has deleted the slices", |it| {
        devices(it).0.is_empty()
    });
    cluster.delete(PODS, &["ends"]);
    cluster.make(PODS, &pod("comes"));
    let comes = format!("{PODS}/comes");
    cluster.until("the scheduler reports why it waits", |it| {
        let pending = it.get(&comes);
        let conditions = pending["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|it| it["reason"] == "Unschedulable")
    });
    let ends = cluster.get(&format!("{PODS}/ends"));
    assert!(
        ends["metadata"]["deletionTimestamp"].is_string(),
        "{ends:#}"
    );
    for pod in pods {
        was_never_started_anew(cluster, &pod.name);
    }
    cluster.report("without a driver nothing comes, and nothing ends");
    cluster.types(&format!("kubectl label node {NODE} {LABEL}=true"));
    cluster.until("the pod has ended", |it| {
        it.get(&format!("{PODS}/ends")).is_null()
    });
    has_all_rails(&claiming(cluster, "comes"));
    cluster.report("the driver is back: one pod has ended, the other one has come");
    end(cluster, &["comes"]);
}
