// SPDX-License-Identifier: Apache-2.0
//! Operations on a node with pods: its programs restart, a namespace enforces PodSecurity, and an operator drains the
//! node.

use super::{
    pods::{self, PODS},
    upgrade::daemons,
};
use integration::{
    Cluster, Netns,
    cluster::{claims::kill_daemon, is_true},
    container_runtime::{
        Pod,
        shared::{HCA, has_all_rails, nodes_of_all_rails},
    },
    control_plane::nodes::NODE,
};
use nix::sys::signal::Signal;
use serde_json::json;

const NAMESPACES: &str = "/api/v1/namespaces";

/// A namespace that enforces PodSecurity.
const TENANTS: &str = "tenants";

/// A new pod gets its rails, and the other pods keep theirs.
#[track_caller]
fn takes_pods(cluster: &mut Cluster, name: &str, pair: &[&Pod; 2]) {
    cluster.make(PODS, &pods::pod(name, &json!({HCA: 1})));
    has_all_rails(&cluster.pod(name));
    pods::are_the_same(cluster, pair);
    cluster.delete(PODS, &[name]);
    let path = format!("{PODS}/{name}");
    cluster.until("it is gone", |it| it.get(&path).is_null());
    cluster.report(&format!("{name} has come and gone"));
}

/// Kills the container runtime and starts it again. The containers continue.
pub(super) fn start_the_runtime_anew(cluster: &mut Cluster, pair: &[&Pod; 2]) {
    cluster.runtime.go(Signal::SIGKILL);
    cluster.runtime.come();
    cluster.report("the runtime was started anew");
    takes_pods(cluster, "after-the-runtime", pair);
}

pub(super) fn start_the_api_server_anew(cluster: &mut Cluster, pair: &[&Pod; 2]) {
    cluster.plane.restart_api_server(Signal::SIGKILL);
    cluster.report("the API server was started anew");
    takes_pods(cluster, "after-the-api-server", pair);
}

/// Kills the daemon's process; kubelet restarts its container.
pub(super) fn kill_the_daemon(cluster: &mut Cluster, pair: &[&Pod; 2]) {
    kill_daemon(cluster);
    cluster.until("the node has ids", Cluster::has_ids);
    cluster.report("the daemon was started again");
    takes_pods(cluster, "after-the-daemon", pair);
}

/// A pod in a namespace that enforces `baseline` gets its rails. The API server refuses a pod with `hostNetwork` in
/// this namespace. When the namespace enforces `privileged`, the API server accepts the pod, and the pod gets the
/// devices.
pub(super) fn enforce_pod_security(cluster: &mut Cluster) {
    let labels = json!({"pod-security.kubernetes.io/enforce": "baseline"});
    let namespace = json!({"metadata": {"name": TENANTS, "labels": labels}});
    cluster.make(NAMESPACES, &namespace);
    let account = format!("{NAMESPACES}/{TENANTS}/serviceaccounts/default");
    cluster.until("it has its account", |it| !it.get(&account).is_null());
    let pods = format!("{NAMESPACES}/{TENANTS}/pods");
    let limits = json!({HCA: 1});
    let mut of_the_host = pods::pod("of-the-host", &limits);
    of_the_host["spec"]["hostNetwork"] = true.into();
    let (is_taken, reply) = cluster
        .plane
        .request("POST", &pods, &of_the_host.to_string());
    assert!(
        !is_taken && reply.contains("violates PodSecurity"),
        "{reply}"
    );
    cluster.make(&pods, &pods::pod("tenant", &limits));
    has_all_rails(&cluster.pod_of(TENANTS, "tenant"));
    cluster.types(&format!(
        "kubectl label --overwrite namespace {TENANTS} pod-security.kubernetes.io/enforce=privileged"
    ));
    cluster.make(&pods, &of_the_host);
    let taken = cluster.pod_of(TENANTS, "of-the-host");
    assert_eq!(taken.main().rdma_nodes(), nodes_of_all_rails());
    cluster.delete(&pods, &["tenant", "of-the-host"]);
    cluster.until("they are gone", |it| it.list(&pods).is_empty());
    cluster.delete(NAMESPACES, &[TENANTS]);
    cluster.report("a namespace that enforces PodSecurity has had pods");
}

/// Drains the node: its pods leave, and the daemon stays. Afterwards pods start on the node as before.
pub(super) fn drain_the_node(cluster: &mut Cluster, pair: [&Pod; 2]) {
    let netns: Vec<Netns> = pair.into_iter().map(Pod::netns).collect();
    let output = cluster.types(&format!(
        "kubectl drain {NODE} --ignore-daemonsets --force --grace-period=1 --timeout=5m"
    ));
    assert!(output.contains("drained"), "{output}");
    pods::have_left_nothing(cluster, &netns);
    let [daemon] = &daemons(cluster)[..] else {
        panic!("one daemon");
    };
    assert!(is_true(daemon, "Ready"), "{daemon:#}");
    cluster.types(&format!("kubectl uncordon {NODE}"));
    cluster.types("kubectl apply -f conf/examples/10-bandwidth.yaml");
    let pair = pods::PAIR.map(|name| cluster.pod(name));
    pair.iter().for_each(has_all_rails);
    pods::end(cluster, [&pair[0], &pair[1]]);
}
