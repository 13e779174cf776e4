// SPDX-License-Identifier: Apache-2.0
//! Pods of users.

use integration::{
    Cluster, Netns,
    cluster::traffic,
    container_runtime::{
        Pod, TOOLS,
        installed::records,
        shared::{HCA, has_all_rails, links, nodes_of_all_rails, rping_on_all_rails},
    },
    real_kubelet::{pod_resources, registrations},
};
use kubelet_api::pod_resources::of_pod_blocking;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::time::Duration;

/// The pods of the example, in the order of its file.
pub(super) const PAIR: [&str; 2] = ["rdma-test-pod", "rdma-test-pod-1"];

/// The API path of a user's pods.
pub(super) const PODS: &str = "/api/v1/namespaces/default/pods";

/// The links of a pod without RDMA.
pub(super) const PLAIN: [&str; 2] = ["lo", "eth0"];

/// Returns the number of ids allocated to the pod, as kubelet reports them.
#[track_caller]
fn allocated(pod: &Pod) -> usize {
    let limit = Duration::from_secs(60);
    let resources = of_pod_blocking(&pod_resources(), "default", &pod.name, limit);
    let resources = resources.unwrap_or_else(|error| panic!("{error}"));
    let resources = resources.unwrap_or_else(|| panic!("kubelet does not know {}", pod.name));
    let devices = resources.containers.iter().flat_map(|it| &it.devices);
    let of_ours = devices.filter(|it| it.resource_name == HCA);
    of_ours.map(|it| it.device_ids.len()).sum()
}

/// A pod that requests `limits`. Its deletion does not wait for the shell to end.
pub(super) fn pod(name: &str, limits: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec(limits)})
}

pub(super) fn spec(limits: &Value) -> Value {
    let container = json!({
        "name": "main", "image": TOOLS, "command": ["sleep", "1000000"], "resources": {"limits": limits},
    });
    json!({"terminationGracePeriodSeconds": 1, "containers": [container]})
}

/// A pod without RDMA, and the example's pods with `hostNetwork`, which have the devices and the node's
/// NICs.
pub(super) fn without_rails_are_untouched(cluster: &mut Cluster) {
    cluster.make(PODS, &pod("plain", &json!({})));
    cluster.types("kubectl apply -f conf/examples/10-bandwidth-host-network.yaml");
    let plain = cluster.pod("plain");
    assert_eq!(links(&plain.netns()), PLAIN);
    assert_eq!(allocated(&plain), 0);
    let pod_object = cluster.get("/api/v1/namespaces/default/pods/plain");
    let addresses = pod_object["status"]["podIPs"]
        .as_array()
        .expect("addresses");
    assert_eq!(addresses.len(), 1, "{addresses:?}");
    let address = addresses[0]["ip"].as_str().expect("an address");
    assert!(address.starts_with("10.88."), "{address}");
    for name in PAIR {
        let pod = cluster.pod(name);
        assert_eq!(pod.main().rdma_nodes(), nodes_of_all_rails());
        assert_eq!(allocated(&pod), 1);
    }
    assert!(records().is_empty(), "{:?}", records());
    cluster.delete(PODS, &["plain", PAIR[0], PAIR[1]]);
    cluster.until("they are gone", |it| it.list(PODS).is_empty());
    cluster.report("pods without rails are gone");
}

/// Starts the two pods of `10-bandwidth.yaml`, and checks that they have all rails of the cluster's only node. The pods
/// of `verify.yaml` need two nodes.
pub(super) fn of_the_example_have_all_rails(cluster: &mut Cluster) -> [Pod; 2] {
    cluster.types("kubectl apply -f conf/examples/10-bandwidth.yaml");
    cluster.types(
        "kubectl wait --for=condition=Ready -f conf/examples/10-bandwidth.yaml --timeout=5m",
    );
    let output = cluster.types("kubectl exec rdma-test-pod -- ls /dev/infiniband");
    let nodes: Vec<&str> = output.lines().collect();
    assert_eq!(nodes, ["rdma_cm", "uverbs0", "uverbs1"]);
    let pair = PAIR.map(|name| cluster.pod(name));
    for pod in &pair {
        has_all_rails(pod);
        assert_eq!(allocated(pod), 1);
    }
    assert_eq!(records().len(), 2);
    let log = cluster.types("kubectl logs rdma-test-pod");
    for words in ["rdma_cm", "uverbs0", "rdma0", "rdma1"] {
        assert!(log.contains(words), "{log}");
    }
    pair
}

/// Runs `rping` on each rail. Then runs, by `kubectl exec`, `rping` on rail 0 and `ib_read_bw -q 30` on rail 1.
pub(super) fn have_rdma_between_them(cluster: &Cluster, pair: [&Pod; 2]) {
    rping_on_all_rails(pair);
    let names = pair.map(|it| it.name.as_str());
    traffic::rping(cluster, names, 0);
    traffic::read_bandwidth(cluster, names, 1, 30);
}

/// Kubelet restarts: the same containers run, and keep their allocation.
pub(super) fn outlive_kubelet(cluster: &mut Cluster, pair: &[&Pod; 2]) {
    cluster.kubelet.go(Signal::SIGTERM);
    pair.iter().for_each(|pod| has_all_rails(pod));
    cluster.kubelet.come();
    cluster.until("the daemon has registered", |_| registrations(HCA) > 0);
    cluster.report("kubelet was started anew, and the daemon has registered");
    are_the_same(cluster, pair);
}

/// The example's second pod ends, and is created again from the example.
pub(super) fn one_comes_again(cluster: &mut Cluster, pod: Pod) -> Pod {
    let path = format!("{PODS}/{}", pod.name);
    cluster.delete(PODS, &[&pod.name]);
    cluster.until("it is gone", |it| it.get(&path).is_null());
    cluster.types("kubectl apply -f conf/examples/10-bandwidth.yaml");
    let again = cluster.pod(&pod.name);
    assert_ne!(again.sandbox, pod.sandbox);
    has_all_rails(&again);
    assert_eq!(allocated(&again), 1);
    assert_eq!(records().len(), 2);
    cluster.report("the second pod has come again");
    again
}

#[track_caller]
pub(super) fn are_the_same(cluster: &mut Cluster, pair: &[&Pod; 2]) {
    for pod in pair {
        let now = cluster.pod(&pod.name);
        assert_eq!(now.main().id, pod.main().id);
        assert_eq!(now.sandbox, pod.sandbox);
        has_all_rails(&now);
        assert_eq!(allocated(&now), 1);
    }
}

/// The example's pods end. Asserts that nothing of them remains.
pub(super) fn end(cluster: &mut Cluster, pair: [&Pod; 2]) {
    let netns: Vec<Netns> = pair.into_iter().map(Pod::netns).collect();
    cluster.delete(PODS, &PAIR);
    have_left_nothing(cluster, &netns);
}

/// Waits until the pods with these namespaces have ended. Asserts that nothing of them remains.
pub(super) fn have_left_nothing(cluster: &mut Cluster, netns: &[Netns]) {
    // the runtime removes a namespace last, after DEL
    cluster.until("they are gone", |it| {
        it.list(PODS).is_empty() && netns.iter().all(|it| !it.path().exists())
    });
    assert!(records().is_empty(), "{:?}", records());
    cluster.report("the pods are gone");
}
