// SPDX-License-Identifier: Apache-2.0
//! Tests of the reports on rails to the API server. If the reports are not enabled, their objects do not exist. The
//! account has only the permissions for the reports.

use crate::{cluster::cluster, refused::of_kind, wanted::ALL};
use rdma_device_plugin::report::{Topic, condition};
use serde_json::{Value, json};

pub(crate) const FILE: &str = "integration/manifests/rendered/report.yaml";
pub(crate) const BY_ANOTHER_ACCOUNT: &str =
    "integration/manifests/rendered/report-events-by-another-account.yaml";

const EVENTS: (&str, &str) = ("events", "create");
const CONDITION: (&str, &str) = ("nodes/status", "patch");

/// Returns the objects of `kind` that exist for the reports.
fn own<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let mut own = of_kind(objects, kind);
    own.retain(|it| it["metadata"]["name"] == "rdma-device-plugin-report.kube-system");
    own
}

#[test]
fn the_enabled_report_has_the_smallest_role() {
    for wanted in ALL {
        let cluster = cluster(wanted.file);
        let (topics, rights, account): (&[_], &[_], _) = match wanted.file {
            FILE => (
                &[Topic::Events, Topic::NodeCondition],
                &[EVENTS, CONDITION],
                "rdma-device-plugin",
            ),
            BY_ANOTHER_ACCOUNT => (&[Topic::Events], &[EVENTS], "rdma"),
            _ => (&[], &[], ""),
        };
        assert_eq!(cluster.arguments().report, topics, "{}", wanted.file);
        let objects = &cluster.others;
        let roles = own(objects, "ClusterRole");
        let rules = rights.iter().map(
            |(resource, verb)| json!({"apiGroups": [""], "resources": [resource], "verbs": [verb]}),
        );
        let rules: Vec<Value> = rules.collect();
        let found = roles
            .iter()
            .flat_map(|it| it["rules"].as_array().expect("rules"));
        assert_eq!(found.cloned().collect::<Vec<_>>(), rules, "{}", wanted.file);
        let bindings = own(objects, "ClusterRoleBinding");
        assert_eq!(bindings.len(), roles.len(), "{}", wanted.file);
        for binding in bindings {
            let subject =
                json!([{"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}]);
            assert_eq!(binding["subjects"], subject);
        }
        let policies = own(objects, "ValidatingAdmissionPolicy");
        let is_held = rights.contains(&CONDITION);
        assert_eq!(policies.len(), usize::from(is_held), "{}", wanted.file);
        let bound = own(objects, "ValidatingAdmissionPolicyBinding");
        assert_eq!(bound.len(), policies.len(), "{}", wanted.file);
    }
}

/// A real API server shows which requests the policy admits (`integration/tests/cluster`).
#[test]
fn the_policy_is_of_that_account_and_that_condition_and_denies() {
    let objects = cluster(FILE).others;
    let policy = &own(&objects, "ValidatingAdmissionPolicy")[0]["spec"];
    assert_eq!(policy["failurePolicy"], "Fail");
    let condition = policy["matchConditions"][0]["expression"].as_str();
    let account = "\"system:serviceaccount:kube-system:rdma-device-plugin\"";
    assert!(condition.expect("a condition").ends_with(account));
    let matched = &policy["matchConstraints"]["resourceRules"][0];
    assert_eq!(matched["resources"], json!(["nodes/status"]));
    let own_type = format!("\"{}\"", condition::TYPE);
    let mut variables = policy["variables"].as_array().expect("variables").iter();
    assert!(variables.any(|it| it["expression"] == *own_type));
    let bound = own(&objects, "ValidatingAdmissionPolicyBinding");
    assert_eq!(bound[0]["spec"]["validationActions"], json!(["Deny"]));
    let accounts = of_kind(&objects, "ServiceAccount");
    assert_eq!(accounts.len(), 1);
    assert_eq!(accounts[0]["automountServiceAccountToken"], false);
}
