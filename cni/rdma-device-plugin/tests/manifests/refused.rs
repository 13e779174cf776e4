// SPDX-License-Identifier: Apache-2.0
//! Tests of the permission to delete refused pods: no account has it if the feature is not enabled.

use crate::{claims, cluster::cluster, platforms, report, wanted::ALL};
use rdma_device_plugin::refused::RefusedPods;
use serde_json::{Value, json};

pub(crate) const FILE: &str = "integration/manifests/rendered/refused-pods.yaml";
pub(crate) const BY_ANOTHER_ACCOUNT: &str =
    "integration/manifests/rendered/refused-pods-by-another-account.yaml";

pub(crate) fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|it| it["kind"] == kind).collect()
}

#[test]
fn there_is_a_token_and_a_role_only_if_enabled() {
    for wanted in ALL {
        let cluster = cluster(wanted.file);
        let deletes = [
            FILE,
            BY_ANOTHER_ACCOUNT,
            claims::OF_VFS,
            platforms::OPENSHIFT_REFUSED,
            report::BY_ANOTHER_ACCOUNT,
        ]
        .contains(&wanted.file);
        let by_claims = [
            claims::SHARED,
            claims::OF_ERDMA,
            claims::OF_MOVED_VFS,
            claims::OF_WHOLE_NICS,
            claims::OF_ANOTHER_NAME,
        ]
        .contains(&wanted.file);
        let has_role = deletes || by_claims || wanted.file == report::FILE;
        let arguments = cluster.arguments();
        let expected = if deletes {
            RefusedPods::Delete
        } else {
            RefusedPods::Keep
        };
        assert_eq!(arguments.refused_pods, expected, "{}", wanted.file);
        let mut roles = of_kind(&cluster.others, "ClusterRole");
        // the role for using constraints needs no token
        roles.retain(|it| !platforms::uses_constraints(it));
        assert_eq!(!roles.is_empty(), has_role, "{}", wanted.file);
        let volumes = cluster.pod().volumes.iter().flatten();
        let tokens = volumes.filter(|it| it.projected.is_some()).count();
        assert_eq!(tokens, usize::from(has_role), "{}", wanted.file);
        let has_token = |container: &&k8s_openapi::api::core::v1::Container| {
            let mut mounts = container.volume_mounts.iter().flatten();
            mounts.any(|it| it.name == "service-account")
        };
        let pod = cluster.pod();
        let all = pod.containers.iter();
        let all = all.chain(pod.init_containers.iter().flatten());
        let with: Vec<_> = all.filter(has_token).map(|it| it.name.as_str()).collect();
        let expected: &[&str] = if has_role {
            &["rdma-device-plugin"]
        } else {
            &[]
        };
        assert_eq!(with, expected, "{}", wanted.file);
    }
}

#[test]
fn the_role_is_the_smallest() {
    for (file, account) in [(FILE, "rdma-device-plugin"), (BY_ANOTHER_ACCOUNT, "rdma")] {
        let objects = cluster(file).others;
        let roles = of_kind(&objects, "ClusterRole");
        let rules = json!([
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        ]);
        assert_eq!((roles.len(), &roles[0]["rules"]), (1, &rules), "{file}");
        let bindings = of_kind(&objects, "ClusterRoleBinding");
        let subject =
            json!([{"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}]);
        assert_eq!((bindings.len(), &bindings[0]["subjects"]), (1, &subject));
        let made = of_kind(&objects, "ServiceAccount");
        assert_eq!(made.len(), usize::from(file == FILE), "{file}");
        for account in made {
            assert_eq!(account["automountServiceAccountToken"], false);
        }
        // the policy applies to this account, fails closed, and denies
        let policies = of_kind(&objects, "ValidatingAdmissionPolicy");
        let policy = &policies[0]["spec"];
        assert_eq!(
            (policies.len(), &policy["failurePolicy"]),
            (1, &json!("Fail"))
        );
        let condition = policy["matchConditions"][0]["expression"].as_str();
        let condition = condition.expect("a condition");
        let named = format!("\"system:serviceaccount:kube-system:{account}\"");
        assert!(condition.ends_with(&named), "{condition}");
        let bound = of_kind(&objects, "ValidatingAdmissionPolicyBinding");
        assert_eq!(bound[0]["spec"]["validationActions"], json!(["Deny"]));
        assert_eq!(
            bound[0]["spec"]["policyName"],
            policies[0]["metadata"]["name"]
        );
        assert_eq!(objects.len(), if file == FILE { 5 } else { 4 }, "{file}");
    }
}
