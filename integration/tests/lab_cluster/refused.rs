// SPDX-License-Identifier: Apache-2.0
//! Pods whose containers may not start (`--refused-pods delete`), with the start attempts of a real kubelet.

use super::{
    PAGE,
    pods::{self, PODS},
};
use integration::{
    Cluster,
    cluster::is_true,
    container_runtime::shared::{HCA, has_all_rails},
    lab::uverbs,
    nics, pages,
};
use serde_json::{Value, json};
use std::time::Instant;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().expect("an id")
}

/// An RDMA device that is not a rail: its netdev has the node's default route.
const OTHER: &str = "rxe_other";

/// Creates the rails' RDMA devices again, after another device: the first rail's device gets the second's old number,
/// and the second's a number that no container got.
#[track_caller]
fn change_numbers(cluster: &Cluster) {
    let numbers = || [0, 1].map(|rail| uverbs(&nics::rdma(rail)).0);
    assert_eq!(numbers(), ["uverbs0", "uverbs1"]);
    let host = &cluster.nics.host;
    for rail in [0, 1] {
        host.run(&format!("rdma link delete {}", nics::rdma(rail)));
    }
    let netdev = cluster.management();
    host.run(&format!("rdma link add {OTHER} type rxe netdev {netdev}"));
    for rail in [0, 1] {
        let (rdma, netdev) = (nics::rdma(rail), nics::netdev(rail));
        host.run(&format!("rdma link add {rdma} type rxe netdev {netdev}"));
    }
    assert_eq!(numbers(), ["uverbs1", "uverbs2"]);
}

/// A container that ends after the numbers of its devices have changed may not start again. At kubelet's
/// second attempt the daemon deletes the pod. The controller's new pod gets its rails.
pub(super) fn are_deleted_and_come_again(cluster: &mut Cluster) {
    let labels = json!({"app": "trainer"});
    let template = json!({"metadata": {"labels": labels}, "spec": pods::spec(&json!({HCA: 1}))});
    let trainer = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "trainer"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    });
    cluster.make(DEPLOYMENTS, &trainer);
    cluster.until("the pod is ready", |it| {
        it.list(PODS).iter().any(|pod| is_true(pod, "Ready"))
    });
    let first = cluster.list(PODS).remove(0);
    let name = first["metadata"]["name"].as_str().expect("a name");
    let pod = cluster.pod(name);
    has_all_rails(&pod);
    cluster.report("the pod is ready");
    change_numbers(cluster);
    cluster.runtime.cri().kill(&pod.main().id);
    cluster.until("its container may not start", |it| {
        let pod = it.get(&format!("{PODS}/{name}"));
        let waits = &pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"];
        *waits == "CreateContainerConfigError" || pod["metadata"]["deletionTimestamp"].is_string()
    });
    cluster.report("the container may not start");
    let refused = Instant::now();
    cluster.until("the pod is deleted", |it| {
        let pods = it.list(PODS);
        pods.iter()
            .all(|pod| uid(pod) != uid(&first) || !pod["metadata"]["deletionTimestamp"].is_null())
    });
    cluster.report(&format!("the pod is deleted {:?} later", refused.elapsed()));
    cluster.until("another pod is ready", |it| {
        let pods = it.list(PODS);
        let mut pods = pods.iter().filter(|pod| uid(pod) != uid(&first));
        pods.any(|pod| is_true(pod, "Ready"))
    });
    let all = cluster.list(PODS);
    let second = all.iter().find(|pod| uid(pod) != uid(&first));
    let second = second.expect("the other pod")["metadata"]["name"].as_str();
    has_all_rails(&cluster.pod(second.expect("a name")));
    let [line] = &pages::commands(PAGE, "Refused pods", "kubectl")[..] else {
        panic!("one command shows them");
    };
    let events = cluster.types(line);
    assert!(events.contains(name), "{events}");
    assert!(
        events.contains("was granted as /dev/infiniband/uverbs"),
        "{events}"
    );
    cluster.types("kubectl delete deployment trainer --cascade=foreground");
    let other = format!("rdma link delete {OTHER}");
    cluster.nics.host.run(&other);
}
