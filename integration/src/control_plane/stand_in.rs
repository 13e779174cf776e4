// SPDX-License-Identifier: Apache-2.0
//! Stand-in for a kubelet: a ready node, and pods that start immediately.

use super::ControlPlane;
use serde_json::json;

impl ControlPlane {
    /// Adds a ready node without a kubelet. It has `resources`, in addition to CPU, memory and room for
    /// pods.
    #[track_caller]
    pub fn add_node(&mut self, name: &str, resources: &[(&str, &str)]) {
        let labels = json!({"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
        self.apply("apply -f -", &node.to_string());
        let mut has = json!({"cpu": "64", "memory": "256Gi", "pods": "110"});
        for (resource, count) in resources {
            has[resource] = json!(count);
        }
        let ready =
            json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""});
        let addresses = [json!({"type": "InternalIP", "address": self.address().0})];
        let status = json!({"status": {
            "capacity": has, "allocatable": has, "addresses": addresses, "conditions": [ready],
        }});
        self.succeeds(
            "PATCH",
            &format!("/api/v1/nodes/{name}/status"),
            &status.to_string(),
        );
        // the controllers remove the taint when they have seen that the node is ready
        self.until("the node takes pods", |it| {
            it.get(&format!("node {name}"))[0]["spec"]["taints"].is_null()
        });
    }

    /// Does a kubelet's work once: sets the status of pending pods that are bound to a node to running and ready, and
    /// removes deleted pods.
    #[track_caller]
    pub fn start_bound_pods(&self) {
        for pod in self.get("pods -A") {
            if pod["spec"]["nodeName"].is_null() {
                continue;
            }
            let path = format!(
                "/api/v1/namespaces/{}/pods/{}",
                pod["metadata"]["namespace"].as_str().expect("a namespace"),
                pod["metadata"]["name"].as_str().expect("a name"),
            );
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                self.succeeds("DELETE", &path, r#"{"gracePeriodSeconds": 0}"#);
            } else if pod["status"]["phase"] == "Pending" {
                // long ago: a DaemonSet may require that its pod has been ready for some time
                // (`minReadySeconds`)
                let since = "2026-01-01T00:00:00Z";
                let conditions = ["Initialized", "ContainersReady", "Ready"]
                    .map(|it| json!({"type": it, "status": "True", "lastTransitionTime": since}));
                let status = json!({"status": {"phase": "Running", "conditions": conditions}});
                self.succeeds("PATCH", &format!("{path}/status"), &status.to_string());
            }
        }
    }
}
