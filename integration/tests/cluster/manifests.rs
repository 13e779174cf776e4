// SPDX-License-Identifier: Apache-2.0
//! The manifests, and the rendered chart.

use super::{text, yaml_files};
use integration::ControlPlane;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const APPLY: &str = "apply --server-side --validate=strict -f -";
const APPLY_ANY: &str = "apply --validate=strict -f -";

/// Returns the manifests that an operator applies, and those that the chart renders with each of the tests' values.
/// Excludes the manifests with claims.
fn all() -> Vec<String> {
    let mut files = yaml_files("conf/manifests");
    let rendered = yaml_files("integration/manifests/rendered");
    // another test covers the manifests whose fields an older API server does not have
    let is_claimed = |file: &String| file.contains("/claims");
    files.extend(rendered.into_iter().filter(|file| !is_claimed(file)));
    files
}

fn daemon_set(file: &str) -> &'static str {
    if file.contains("/uninstall") {
        "ack-rdma-dp-uninstall"
    } else {
        "ack-rdma-dp-ds"
    }
}

/// Waits until a DaemonSet has a pod on each of `pods` nodes, does kubelet's work for these pods, and waits until they
/// are available. Panics if `rollout status` then does not report success.
#[track_caller]
pub(super) fn roll_out(cluster: &mut ControlPlane, daemon_set: &str, pods: u64) {
    let what = format!("-n kube-system ds/{daemon_set}");
    cluster.until(
        &format!("{daemon_set} has its pods, which are ready"),
        |it| {
            let daemon_set = &it.get(&what)[0];
            let (status, generation) =
                (&daemon_set["status"], &daemon_set["metadata"]["generation"]);
            let is = |count: &str| status[count] == pods;
            let has_pods = status["observedGeneration"] == *generation
                && is("currentNumberScheduled")
                && is("desiredNumberScheduled");
            let are_ready = has_pods && is("updatedNumberScheduled") && is("numberAvailable");
            if has_pods && !are_ready {
                it.start_bound_pods();
            }
            are_ready
        },
    );
    let output = cluster.kubectl(&format!("rollout status --watch=false {what}"));
    assert!(output.contains("successfully rolled out"), "{output}");
}

/// Deletes the objects of a manifest, and waits until the cluster has no pods.
#[track_caller]
pub(super) fn delete(cluster: &mut ControlPlane, text: &str) {
    cluster.apply("delete --wait=false -f -", text);
    cluster.until("no pods are left", |it| {
        it.start_bound_pods();
        it.get("pods -A").is_empty()
    });
}

/// The custom resource definitions of the Prometheus operator, without a schema. `scripts/manifests --check` checks the
/// chart against the operator's own types.
fn monitoring() -> Vec<Value> {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let resource = |kind: &str, plural: &str| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
            "spec": {
                "group": "monitoring.coreos.com",
                "scope": "Namespaced",
                "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
                "versions": [{"name": "v1", "served": true, "storage": true,
                              "schema": {"openAPIV3Schema": any}}],
            },
        })
    };
    vec![
        resource("PodMonitor", "podmonitors"),
        resource("PrometheusRule", "prometheusrules"),
    ]
}

/// The API server accepts each manifest with strict validation and changes none of its fields. The pods are scheduled
/// to the right nodes.
pub(super) fn taken_strictly_and_as_they_are(cluster: &mut ControlPlane) {
    for resource in monitoring() {
        cluster.apply("apply -f -", &resource.to_string());
        let name = resource["metadata"]["name"]
            .as_str()
            .expect("a name")
            .to_owned();
        cluster.until(&format!("{name} is served"), |it| {
            it.try_kubectl(&format!("get {name} -A")).status.success()
        });
    }
    for file in all() {
        eprintln!("{file}");
        let text = text(&file);
        cluster.apply(APPLY, &text);
        let differs = cluster.kubectl_with("diff --server-side -f -", &text);
        let shown = String::from_utf8_lossy(&differs.stdout).into_owned();
        assert!(differs.status.success(), "{file}: {shown}");
        let selects_the_label = text.contains("aliyun.accelerator/rdma: \"true\"");
        let nodes = if selects_the_label { 1 } else { 2 };
        roll_out(cluster, daemon_set(&file), nodes);
        if selects_the_label {
            let pods = cluster.get("pods -n kube-system");
            assert_eq!(pods[0]["spec"]["nodeName"], "rdma-1", "{file}");
        }
        delete(cluster, &text);
    }
}

/// Returns a closed walk of numbers from `from` back to it, without its first number. In the walk, each number from
/// `from` to `end` (exclusive) is followed by each other number exactly once.
fn tour(from: usize, end: usize) -> Vec<usize> {
    let mut walk = vec![];
    for next in from + 1..end {
        walk.push(next);
        if next == from + 1 {
            walk.extend(tour(next, end));
        }
        walk.push(from);
    }
    walk
}

/// Applies each manifest over each other manifest as the pages say. Nothing of the earlier manifest remains in the
/// DaemonSet.
pub(super) fn any_one_becomes_any_other(cluster: &mut ControlPlane) {
    let files = yaml_files("conf/manifests");
    let files: Vec<String> = files
        .into_iter()
        .filter(|file| daemon_set(file) == "ack-rdma-dp-ds")
        .map(|file| text(&file))
        .collect();
    assert_eq!(files.len(), 6, "the manifests of the daemon");
    let mut from = 0;
    cluster.apply(APPLY_ANY, &files[from]);
    let mut pairs = BTreeSet::new();
    for to in tour(0, files.len()) {
        pairs.insert((from, to));
        let applied = cluster.apply(&format!("{APPLY_ANY} -o json"), &files[to]);
        let differs = cluster.kubectl_with("diff -f -", &files[to]);
        let shown = String::from_utf8_lossy(&differs.stdout).into_owned();
        assert!(differs.status.success(), "from {from} to {to}: {shown}");
        let applied: Value = serde_json::from_str(&applied).expect("kubectl prints JSON");
        let mut items = applied["items"].as_array().expect("a list").iter();
        let daemon_set = items.find(|it| it["kind"] == "DaemonSet");
        let pod = &daemon_set.expect("a DaemonSet")["spec"]["template"]["spec"];
        let volumes = pod["volumes"].as_array().expect("volumes").len();
        let kinds = ["hostPath:", "configMap:", "emptyDir:"];
        let written = kinds.iter().map(|it| files[to].matches(it).count());
        assert_eq!(volumes, written.sum::<usize>());
        from = to;
    }
    assert_eq!(pairs.len(), 30, "each is followed by each");
    delete(cluster, &files[0]);
}

/// In a namespace that enforces `baseline`, the API server accepts the DaemonSet, and the controller cannot create a
/// pod: an event says why. With `privileged` it creates the pod.
pub(super) fn podsecurity_stops_them_where_it_is_enforced(cluster: &mut ControlPlane) {
    cluster.kubectl("create namespace rdma");
    for (level, pods) in [("baseline", 0), ("privileged", 1)] {
        cluster.kubectl(&format!(
            "label --overwrite namespace rdma pod-security.kubernetes.io/enforce={level}"
        ));
        for file in yaml_files("conf/manifests") {
            let text = text(&file).replace("namespace: kube-system", "namespace: rdma");
            cluster.apply(APPLY, &text);
            if pods == 0 {
                cluster.until("the events say why there is no pod", |it| {
                    let events =
                        it.kubectl("-n rdma get events --field-selector reason=FailedCreate");
                    events.contains("violates PodSecurity \"baseline:latest\"")
                });
                cluster.kubectl("-n rdma delete events --all");
            } else {
                cluster.until("there is a pod", |it| it.get("pods -n rdma").len() == pods);
            }
            assert_eq!(cluster.get("pods -n rdma").len(), pods, "{file}, {level}");
            delete(cluster, &text);
        }
    }
    cluster.kubectl("delete namespace rdma");
}
