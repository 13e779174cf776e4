// SPDX-License-Identifier: Apache-2.0
//! The manifests, and the chart as it was rendered.

use super::{DAEMON_SET, text, yaml_files};
use integration::ControlPlane;
use serde_json::{Value, json};

const APPLY: &str = "apply --server-side --validate=strict -f -";

/// Returns the manifests that an operator applies, and those that the chart renders with each of the tests' values, except
/// the ones of claims.
fn all() -> Vec<String> {
    let mut files = yaml_files("conf/manifests");
    let rendered = yaml_files("integration/manifests/rendered");
    // what an older API server has no fields of is its own test's
    let is_claimed = |file: &String| file.contains("/claims");
    files.extend(rendered.into_iter().filter(|file| !is_claimed(file)));
    files
}

/// The file's DaemonSet: its name.
fn daemon_set(file: &str) -> &'static str {
    if file.contains("/uninstall") {
        "ack-rdma-dp-uninstall"
    } else {
        "ack-rdma-dp-ds"
    }
}

/// Waits until the controller has made the pods of a DaemonSet, one for each node that it selects,
/// and until `rollout status` says that they are ready.
#[track_caller]
pub(super) fn roll_out(cluster: &mut ControlPlane, daemon_set: &str, pods: u64) {
    let what = format!("-n kube-system ds/{daemon_set}");
    cluster.until(&format!("{daemon_set} has its pods"), |it| {
        let status = &it.get(&what)[0]["status"];
        status["observedGeneration"] == it.get(&what)[0]["metadata"]["generation"]
            && status["currentNumberScheduled"] == pods
            && status["desiredNumberScheduled"] == pods
    });
    cluster.until(&format!("{daemon_set} is rolled out"), |it| {
        it.start_bound_pods();
        let status = it.try_kubectl(&format!("rollout status --watch=false {what}"));
        String::from_utf8_lossy(&status.stdout).contains("successfully rolled out")
    });
}

/// Deletes what the text says, and waits until its pods are gone.
#[track_caller]
pub(super) fn delete(cluster: &mut ControlPlane, text: &str) {
    cluster.apply("delete --wait=false -f -", text);
    cluster.until("no pods are left", |it| {
        it.start_bound_pods();
        it.get("pods -A").is_empty()
    });
}

/// Prometheus' operator's custom resources, of which its own types hold the chart's (`scripts/manifests --check`).
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

/// The API server takes each strictly, changes nothing of what it says, and its pods come where
/// they belong.
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

/// Applied over any other one as the pages say, each manifest leaves nothing of the other one.
pub(super) fn any_one_becomes_any_other(cluster: &mut ControlPlane) {
    let files = yaml_files("conf/manifests");
    let files: Vec<String> = files
        .into_iter()
        .filter(|file| daemon_set(file) == "ack-rdma-dp-ds")
        .map(|file| text(&file))
        .collect();
    assert_eq!(files.len(), 6, "the manifests of the daemon");
    // each is followed by each
    for from in 0..files.len() {
        for to in (0..files.len()).filter(|&to| to != from) {
            cluster.apply("apply --validate=strict -f -", &files[from]);
            cluster.apply("apply --validate=strict -f -", &files[to]);
            let differs = cluster.kubectl_with("diff -f -", &files[to]);
            let shown = String::from_utf8_lossy(&differs.stdout).into_owned();
            assert!(differs.status.success(), "from {from} to {to}: {shown}");
            let daemon_set = &cluster.get(DAEMON_SET)[0]["spec"]["template"]["spec"];
            let volumes = daemon_set["volumes"].as_array().expect("volumes").len();
            let kinds = ["hostPath:", "configMap:", "emptyDir:"];
            let written = kinds.iter().map(|it| files[to].matches(it).count());
            assert_eq!(volumes, written.sum::<usize>());
        }
    }
    delete(cluster, &files[0]);
}

/// In a namespace that enforces `baseline` the DaemonSet is taken and makes no pod; its events
/// say why. With `privileged` it does.
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
