// SPDX-License-Identifier: Apache-2.0
//! Strict check with Kubernetes' own types. The types ignore unknown fields, so the test compares the parsed object
//! with the original.

use crate::{documents, platforms::SecurityContextConstraints, yaml_files};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::{DaemonSet, Deployment, StatefulSet},
    batch::v1::Job,
    core::v1::{ConfigMap, Pod, Service, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

const RBAC: &str = "rbac.authorization.k8s.io/v1";
const ADMISSION: &str = "admissionregistration.k8s.io/v1";

/// Returns the fields of an object that its type does not have. Does not check kinds without a type in the crate. For
/// an unknown kind, returns a sentence.
fn refused(object: &Value) -> Vec<String> {
    let check = match (object["apiVersion"].as_str(), object["kind"].as_str()) {
        (Some("v1"), Some("Pod")) => lost::<Pod>,
        (Some("v1"), Some("ConfigMap")) => lost::<ConfigMap>,
        (Some("v1"), Some("Service")) => lost::<Service>,
        (Some("v1"), Some("ServiceAccount")) => lost::<ServiceAccount>,
        (Some(RBAC), Some("ClusterRole")) => lost::<ClusterRole>,
        (Some(RBAC), Some("ClusterRoleBinding")) => lost::<ClusterRoleBinding>,
        (Some(RBAC), Some("Role")) => lost::<Role>,
        (Some(RBAC), Some("RoleBinding")) => lost::<RoleBinding>,
        (Some("security.openshift.io/v1"), Some("SecurityContextConstraints")) => {
            lost::<SecurityContextConstraints>
        }
        (Some(ADMISSION), Some("ValidatingAdmissionPolicy")) => lost::<ValidatingAdmissionPolicy>,
        (Some(ADMISSION), Some("ValidatingAdmissionPolicyBinding")) => {
            lost::<ValidatingAdmissionPolicyBinding>
        }
        (Some("apps/v1"), Some("DaemonSet")) => lost::<DaemonSet>,
        (Some("apps/v1"), Some("Deployment")) => lost::<Deployment>,
        (Some("apps/v1"), Some("StatefulSet")) => lost::<StatefulSet>,
        (Some("batch/v1"), Some("Job")) => lost::<Job>,
        (Some("k8s.cni.cncf.io/v1"), Some("NetworkAttachmentDefinition")) => return Vec::new(),
        // the crate's types do not have this API yet; scripts/manifests checks it with Kubernetes' own schema
        (Some("resource.k8s.io/v1"), Some("DeviceClass" | "ResourceClaimTemplate")) => {
            return Vec::new();
        }
        // scripts/manifests checks this with the operator's own schema
        (Some("monitoring.coreos.com/v1"), Some("PodMonitor" | "PrometheusRule")) => {
            return Vec::new();
        }
        (version, kind) => return vec![format!("{kind:?} of {version:?} is not known")],
    };
    let mut object = object.clone();
    texts(&mut object);
    check(&object)
}

/// Converts quantities to texts, as the types require. In YAML, a quantity can be a number.
fn texts(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::Object(quantities) if name == "limits" || name == "requests" => {
                        for quantity in quantities.values_mut().filter(|it| it.is_number()) {
                            *quantity = quantity.to_string().into();
                        }
                    }
                    _ => texts(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(texts),
        _ => {}
    }
}

fn lost<T: DeserializeOwned + Serialize>(object: &Value) -> Vec<String> {
    let typed: T = match serde_json::from_value(object.clone()) {
        Ok(typed) => typed,
        Err(error) => return vec![error.to_string()],
    };
    let again = serde_json::to_value(typed).expect("JSON");
    let mut missing = Vec::new();
    compare(object, &again, "", &mut missing);
    missing
}

fn compare(before: &Value, after: &Value, place: &str, missing: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (name, value) in before {
                let place = format!("{place}.{name}");
                match after.get(name) {
                    Some(after) => compare(value, after, &place, missing),
                    None => missing.push(format!("{place} is not known")),
                }
            }
        }
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            for (at, (before, after)) in before.iter().zip(after).enumerate() {
                compare(before, after, &format!("{place}[{at}]"), missing);
            }
        }
        (before, after) if before == after => {}
        (before, after) => missing.push(format!("{place} is {before}, and is read as {after}")),
    }
}

#[test]
fn kubernetes_knows_every_field() {
    let mut objects = 0;
    for directory in [
        "conf/manifests",
        "conf/examples",
        "integration/manifests/rendered",
    ] {
        for file in yaml_files(directory) {
            for object in documents(&file) {
                assert_eq!(refused(&object), [] as [&str; 0], "{file:?}");
                objects += 1;
            }
        }
    }
    assert!(objects > 30, "{objects} objects");
}

#[test]
fn fields_unknown_to_kubernetes_are_found() {
    let pod = |spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec});
    let container = json!({"name": "a", "resources": {"limits": {"rdma/hca": 1}}});
    assert_eq!(
        refused(&pod(json!({"containers": [container]}))),
        [] as [&str; 0]
    );
    for (spec, wanted) in [
        (
            json!({"containers": [{"name": "a", "readOnlyRootFilesystem": true}]}),
            ".spec.containers[0].readOnlyRootFilesystem is not known",
        ),
        (
            json!({"containers": [], "hostNetwork": "yes"}),
            "invalid type: string \"yes\", expected a boolean",
        ),
    ] {
        assert_eq!(refused(&pod(spec)), [wanted]);
    }
    let old = json!({"apiVersion": "extensions/v1beta1", "kind": "DaemonSet"});
    assert_eq!(refused(&old).len(), 1);
}
