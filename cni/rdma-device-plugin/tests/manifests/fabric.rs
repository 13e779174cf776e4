// SPDX-License-Identifier: Apache-2.0
//! Tests of the DaemonSet of the fabric watch: it exists only if the watch is enabled, and its only device is the
//! connection manager.

use crate::{
    cluster::{arguments, cluster},
    refused::of_kind,
    wanted::ALL,
};
use daemon_conf::CONNECTION_MANAGER;
use k8s_openapi::api::apps::v1::DaemonSet;
use rdma_device_plugin::cli::Command;
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) const FILE: &str = "integration/manifests/rendered/fabric.yaml";

fn daemon_set() -> DaemonSet {
    let objects = cluster(FILE).others;
    let [one] = of_kind(&objects, "DaemonSet")[..] else {
        panic!("one DaemonSet");
    };
    serde_json::from_value(one.clone()).expect("a DaemonSet")
}

#[test]
fn only_the_enabled_watch_is_there_and_its_resource_offered() {
    for wanted in ALL {
        let cluster = cluster(wanted.file);
        let is_wanted = wanted.file == FILE;
        assert_eq!(cluster.conf().0.fabric, is_wanted, "{}", wanted.file);
        for kind in ["DaemonSet", "Role"] {
            let found = of_kind(&cluster.others, kind).len();
            assert_eq!(found, usize::from(is_wanted), "{}, {kind}", wanted.file);
        }
    }
}

/// The pod has no capability, and `rdma_cm` is its only device. It can write only to its directory for the daemon and
/// to the directory of its probe socket.
#[test]
fn the_watch_has_the_connection_manager_and_no_right_on_the_node() {
    let pod = daemon_set().spec.template.spec.expect("a pod");
    assert_eq!(pod.host_network, Some(true));
    assert_eq!(pod.automount_service_account_token, Some(false));
    let [watch] = &pod.containers[..] else {
        panic!("one container");
    };
    let security = watch.security_context.as_ref().expect("a context");
    let capabilities = security.capabilities.as_ref().expect("capabilities");
    assert_eq!(capabilities.drop.as_deref(), Some(&["ALL".to_owned()][..]));
    assert_eq!(
        (&capabilities.add, security.privileged),
        (&None, Some(false))
    );
    let resources = watch.resources.as_ref().expect("resources");
    let limits = resources.limits.as_ref().expect("limits");
    let extended: Vec<_> = limits
        .iter()
        .filter(|(name, _)| name.contains('/'))
        .collect();
    assert_eq!(extended.len(), 1);
    assert_eq!(
        (&**extended[0].0, &*extended[0].1.0),
        (CONNECTION_MANAGER, "1")
    );
    let mounts = watch.volume_mounts.iter().flatten();
    let written = mounts.filter(|it| it.read_only != Some(true));
    let written: Vec<&str> = written.map(|it| &*it.name).collect();
    assert_eq!(written, ["verdicts", "probes"]);
    let volumes = pod.volumes.iter().flatten();
    let of_host = volumes.filter_map(|it| it.host_path.as_ref());
    let of_host: Vec<&str> = of_host.map(|it| &*it.path).collect();
    let state = "/var/lib/cni/rdma-cni";
    assert_eq!(of_host, [state, &format!("{state}/fabric")]);
    let Some(Command::Fabric(fabric)) = arguments(watch).expect("arguments").command else {
        panic!("the command fabric");
    };
    assert_eq!(fabric.namespace, "kube-system");
    assert_eq!(fabric.interval, Duration::from_secs(60));
    assert_eq!(fabric.unhealthy_percent, 10);
    assert_eq!(fabric.metrics_address.port(), 9103);
    assert_eq!(fabric.state_dir.as_os_str(), state);
    let socket = fabric.probe_socket.expect("a socket");
    for probe in [&watch.liveness_probe, &watch.readiness_probe] {
        let probe = probe
            .as_ref()
            .and_then(|it| it.exec.as_ref())
            .expect("exec");
        let last = probe
            .command
            .as_ref()
            .and_then(|it| it.last())
            .expect("words");
        assert_eq!(*last, format!("--socket={}", socket.display()));
    }
}

/// The role allows writes of ConfigMaps in one namespace, and a policy restricts them to the ConfigMap of the token's
/// node.
#[test]
fn the_account_writes_the_config_map_of_its_node() {
    let objects = cluster(FILE).others;
    let rules = json!([{
        "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "create", "update", "delete"],
    }]);
    assert_eq!(of_kind(&objects, "Role")[0]["rules"], rules);
    let subject =
        json!([{"kind": "ServiceAccount", "name": "rdma-fabric", "namespace": "kube-system"}]);
    assert_eq!(of_kind(&objects, "RoleBinding")[0]["subjects"], subject);
    let is_cluster_wide = |it: &&Value| it["kind"] == "ClusterRole";
    assert_eq!(objects.iter().filter(is_cluster_wide).count(), 0);
    let policy = &of_kind(&objects, "ValidatingAdmissionPolicy")[0]["spec"];
    assert_eq!(policy["failurePolicy"], "Fail");
    let account = policy["matchConditions"][0]["expression"]
        .as_str()
        .expect("a condition");
    assert!(account.ends_with("\"system:serviceaccount:kube-system:rdma-fabric\""));
    let rule = policy["validations"][0]["expression"]
        .as_str()
        .expect("a rule");
    assert!(
        rule.ends_with("variables.written.metadata.name == \"rdma-fabric-\" + variables.node"),
        "{rule}"
    );
    let matched = &policy["matchConstraints"]["resourceRules"][0];
    assert_eq!(matched["operations"], json!(["CREATE", "UPDATE", "DELETE"]));
    assert_eq!(matched["resources"], json!(["configmaps"]));
    let bound = of_kind(&objects, "ValidatingAdmissionPolicyBinding");
    assert_eq!(bound[0]["spec"]["validationActions"], json!(["Deny"]));
}
