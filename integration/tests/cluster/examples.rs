// SPDX-License-Identifier: Apache-2.0
//! The pods of `conf/examples`.

use super::{manifests::delete, root, text, yaml_files};
use integration::ControlPlane;
use serde_json::{Value, json};

fn all() -> Vec<String> {
    let mut files = yaml_files("conf/examples");
    files.extend(yaml_files("conf/examples/multus"));
    files
}

/// The file with the placeholders of images replaced.
fn example(file: &str) -> String {
    text(file).replace("\"****\"", "example.org/image")
}

/// Multus' custom resource definition according to its specification, with the fields that the
/// examples use.
fn network_attachment_definitions() -> Value {
    let spec = json!({"type": "object", "properties": {"config": {"type": "string"}}});
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "network-attachment-definitions.k8s.cni.cncf.io"},
        "spec": {
            "group": "k8s.cni.cncf.io",
            "scope": "Namespaced",
            "names": {
                "plural": "network-attachment-definitions",
                "singular": "network-attachment-definition",
                "kind": "NetworkAttachmentDefinition",
                "shortNames": ["net-attach-def"],
            },
            "versions": [{"name": "v1", "served": true, "storage": true,
                          "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

/// The API server accepts each example with strict validation. Pods without claims are scheduled to the node that has
/// the requested resources. Of two pods that exclude each other, one gets the node.
pub(super) fn all_are_taken(cluster: &mut ControlPlane) {
    cluster.apply("apply -f -", &network_attachment_definitions().to_string());
    cluster.until("Multus' custom resource is served", |it| {
        it.try_kubectl("get network-attachment-definitions")
            .status
            .success()
    });
    for file in all() {
        let text = example(&file);
        cluster.apply("apply --server-side --validate=strict -f -", &text);
        let is_on_the_node = |pod: &Value| pod["spec"]["nodeName"] == "rdma-1";
        // pods with claims wait: no node has a GPU, or resources that are allocated by claims
        let is_claiming = text.contains("resourceClaims:");
        if text.contains("containers:") && !is_claiming {
            // the second pod waits for another node with RDMA
            let is_apart = text.contains("podAntiAffinity:");
            cluster.until(&format!("{file}: its pods have a node"), |it| {
                let pods = it.get("pods -n default");
                let placed = pods.iter().filter(|it| is_on_the_node(it)).count();
                match is_apart {
                    true => pods.len() == 2 && placed == 1,
                    false => !pods.is_empty() && placed == pods.len(),
                }
            });
        }
        delete(cluster, &text);
    }
}

/// The level `baseline` refuses exactly the pods that request `IPC_LOCK` or the node's network namespace.
pub(super) fn those_that_podsecurity_refuses_are_reported(cluster: &mut ControlPlane) {
    cluster.kubectl("create namespace strict");
    cluster.kubectl("label namespace strict pod-security.kubernetes.io/enforce=baseline");
    cluster.until("pods can be made in the namespace", |it| {
        let account = it.try_kubectl("-n strict get serviceaccount default");
        account.status.success()
    });
    for file in all() {
        // the API server accepts an object that creates pods from a template, and returns a warning
        let dry = cluster.kubectl_with("-n strict apply --dry-run=server -f -", &example(&file));
        let warnings = String::from_utf8_lossy(&dry.stderr).into_owned();
        let asks = example(&file);
        let violates = asks.contains("IPC_LOCK") || asks.contains("hostNetwork: true");
        let is_reported = warnings.contains("PodSecurity \"baseline:latest\"");
        assert_eq!(is_reported, violates, "{file}: {warnings}");
    }
    cluster.kubectl("delete namespace strict");
    assert!(root().join("docs/deploy.md").exists());
}
