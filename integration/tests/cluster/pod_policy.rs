// SPDX-License-Identifier: Apache-2.0
//! The chart's policy for pods of shared rails (`podPolicy`), on a real API server.

use super::text;
use integration::ControlPlane;
use serde_json::{Value, json};

const CHART: &str = "integration/manifests/rendered/pod-policy.yaml";

/// Text of the policy's message.
const REFUSAL: &str = "may have neither NET_ADMIN nor privileged";

fn pod(lists: &Value) -> Value {
    let mut spec = lists.clone();
    if spec["containers"].is_null() {
        spec["containers"] = json!([container("main", &json!({}))]);
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trainer"}, "spec": spec})
}

fn container(name: &str, fields: &Value) -> Value {
    let mut container = json!({"name": name, "image": "example.org/image"});
    for (field, value) in fields.as_object().expect("fields") {
        container[field] = value.clone();
    }
    container
}

fn adds(capability: &str) -> Value {
    json!({"securityContext": {"capabilities": {"add": [capability]}}})
}

/// The resource requests of a container: one of `resource`.
fn requests(resource: &str) -> Value {
    json!({"resources": {"limits": {resource: 1}}})
}

fn both(one: &Value, other: &Value) -> Value {
    let mut all = one.as_object().expect("fields").clone();
    all.extend(other.as_object().expect("fields").clone());
    all.into()
}

/// The API server's refusal of `pod`. Returns `None` if the API server accepts the pod.
fn refusal(cluster: &ControlPlane, pod: &Value) -> Option<String> {
    let created = cluster.kubectl_with("create --dry-run=server -n default -f -", &pod.to_string());
    let message = String::from_utf8_lossy(&created.stderr).into_owned();
    (!created.status.success()).then_some(message)
}

/// The policy refuses pods with shared rails that have a container with `NET_ADMIN`, in any spelling, or a privileged
/// container. It accepts other pods, and other rights.
pub(super) fn refuses_what_could_change_a_shared_nic(cluster: &mut ControlPlane) {
    cluster.apply("apply --server-side --validate=strict -f -", &text(CHART));
    let (rail, admin) = (requests("rdma/hca"), adds("NET_ADMIN"));
    let privileged = json!({"securityContext": {"privileged": true}});
    let one = |fields: &Value| pod(&json!({"containers": [container("main", fields)]}));
    let refused = one(&both(&rail, &admin));
    cluster.until("the policy counts", |it| {
        refusal(it, &refused).is_some_and(|it| it.contains(REFUSAL))
    });

    let beside = |fields: &Value| container("beside", fields);
    let main = || json!([container("main", &rail)]);
    for (list, pod) in [
        ("containers", one(&both(&rail, &adds("CAP_NET_ADMIN")))),
        ("containers", one(&both(&rail, &adds("net_admin")))),
        ("containers", one(&both(&rail, &adds("ALL")))),
        ("containers", one(&both(&rail, &privileged))),
        (
            "containers",
            pod(&json!({"containers": [container("main", &rail), beside(&admin)]})),
        ),
        (
            "containers",
            pod(
                &json!({"initContainers": [beside(&rail)], "containers": [container("main", &admin)]}),
            ),
        ),
        (
            "initContainers",
            pod(&json!({"initContainers": [beside(&admin)], "containers": main()})),
        ),
        (
            "initContainers",
            pod(&json!({"initContainers": [beside(&privileged)], "containers": main()})),
        ),
    ] {
        let why = refusal(cluster, &pod).unwrap_or_else(|| panic!("taken: {pod}"));
        assert!(why.contains(REFUSAL) && why.contains(list), "{pod}: {why}");
    }
    for pod in [
        one(&rail),
        one(&both(&rail, &adds("IPC_LOCK"))),
        one(&both(
            &rail,
            &json!({"securityContext": {"privileged": false}}),
        )),
        one(&admin),
        one(&privileged),
        one(&both(&requests("rdma/vf"), &admin)),
        pod(&json!({"hostNetwork": true, "containers": main()})),
        pod(&json!({"initContainers": [beside(&adds("NET_RAW"))], "containers": main()})),
    ] {
        assert_eq!(refusal(cluster, &pod), None, "{pod}");
    }

    // kubectl debug
    cluster.apply("create -n default -f -", &one(&rail).to_string());
    let mut debugged = cluster.get("pod -n default trainer").remove(0);
    for (fields, is_taken) in [(&admin, false), (&privileged, false), (&json!({}), true)] {
        debugged["spec"]["ephemeralContainers"] = json!([container("debug", fields)]);
        let path = "/api/v1/namespaces/default/pods/trainer/ephemeralcontainers";
        let replaced =
            cluster.kubectl_with(&format!("replace --raw {path} -f -"), &debugged.to_string());
        let message = String::from_utf8_lossy(&replaced.stderr);
        assert_eq!(replaced.status.success(), is_taken, "{fields}: {message}");
        assert_eq!(message.contains(REFUSAL), !is_taken, "{fields}: {message}");
    }
    cluster.kubectl("delete pod -n default trainer --force --grace-period=0");
    cluster.apply("delete --ignore-not-found --wait=false -f -", &text(CHART));
}
