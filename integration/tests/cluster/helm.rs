// SPDX-License-Identifier: Apache-2.0
//! The blocks of the pages that call Helm, run with Helm itself.

use super::{DAEMON_SET, manifests, migrate::Operator, text};
use integration::{
    ControlPlane,
    control_plane::HELM,
    pages::{self, Block},
};
use serde_json::Value;
use std::env;

const PAGE: &str = "docs/deploy.md";

/// The heading of an example with two releases.
const KINDS: &str = "Two kinds of nodes";

/// The headings of the blocks of [`PAGE`] that call Helm, in their order.
const HEADINGS: [&str; 5] = [
    "The chart",
    "Counters of devices inside pods",
    "Refused pods",
    "Pods with NET_ADMIN",
    "Removal",
];

/// Runs the blocks of [`PAGE`] that call Helm and that no other test runs, in order and unchanged. Rolls the upgrade
/// back, as the text of the page says.
pub(super) fn every_block_works(cluster: &mut ControlPlane) {
    if env::var_os(HELM).is_none() {
        // scripts/test counts this test as skipped, with the reason
        println!("Helm is not here");
        return;
    }
    // remove the objects of the page's last kubectl commands
    cluster.shell("kubectl delete -f conf/manifests/uninstall.yaml --wait=false");
    are_gone(cluster);
    let blocks = blocks_with_helm(PAGE);
    let headings: Vec<_> = blocks.iter().map(|it| it.heading.as_str()).collect();
    assert_eq!(headings, HEADINGS);
    let [install, upgrade, render, pods, remove] = &blocks[..] else {
        unreachable!("as many as there are headings");
    };
    types(cluster, install);
    manifests::roll_out(cluster, "ack-rdma-dp-ds", 1);
    types(cluster, upgrade);
    let capabilities = |it: &ControlPlane| {
        let container = &it.get(DAEMON_SET)[0]["spec"]["template"]["spec"]["containers"][0];
        container["securityContext"]["capabilities"]["add"].to_string()
    };
    assert!(capabilities(cluster).contains("SYS_ADMIN"));
    cluster.shell("helm -n kube-system rollback rdma");
    assert!(!capabilities(cluster).contains("SYS_ADMIN"));
    types(cluster, render);
    assert!(has_policy(cluster, "rdma-device-plugin.kube-system"));
    types(cluster, pods);
    let of_pods = "rdma-device-plugin-pods.kube-system";
    assert!(has_policy(cluster, of_pods));
    types(cluster, remove);
    are_gone(cluster);
    // `helm template | kubectl delete` deletes the objects that `helm template | kubectl apply` created
    for block in [render, pods] {
        let [line] = &block.lines[..1] else {
            unreachable!("one line");
        };
        cluster.shell(&line.replace("kubectl apply", "kubectl delete --ignore-not-found"));
    }
    assert!(!has_policy(cluster, "rdma-device-plugin.kube-system"));
    assert!(!has_policy(cluster, of_pods));
}

/// Helm refuses to install over objects of the same names that another owner created. The commands of the
/// page transfer these objects to the release.
pub(super) fn a_foreign_owners_objects_are_handed_over(cluster: &mut ControlPlane) {
    if env::var_os(HELM).is_none() {
        return;
    }
    let manifest = text("conf/manifests/lingjun.yaml");
    cluster.apply("apply -f -", &manifest);
    let install = "helm install rdma conf/helm/rdma-device-plugin --namespace kube-system \
                   --values conf/helm/values/lingjun.yaml";
    let refused = cluster.try_shell(install);
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(why.contains("invalid ownership metadata"), "{why}");
    let mut blocks = pages::blocks("docs/drop-in.md");
    blocks.retain(|it| it.lines.iter().any(|line| line.contains("meta.helm.sh/")));
    let [hand_over] = &blocks[..] else {
        panic!("one block: {blocks:?}");
    };
    types(cluster, hand_over);
    cluster.shell(install);
    manifests::roll_out(cluster, "ack-rdma-dp-ds", 1);
    cluster.shell("helm -n kube-system uninstall rdma");
    are_gone(cluster);
}

/// Two releases of the chart: each kind of node has only the daemon of its own release.
pub(super) fn two_kinds_of_nodes_have_a_release_each(cluster: &mut ControlPlane) {
    if env::var_os(HELM).is_none() {
        return;
    }
    let operator = Operator::new(cluster, &[("OTHER", "plain-1")]);
    let mut blocks = pages::blocks(PAGE);
    blocks.retain(|it| it.heading == KINDS);
    let [install] = &blocks[..] else {
        panic!("one block: {blocks:?}");
    };
    operator.types(install);
    for (namespace, node, mode) in [
        ("kube-system", "rdma-1", None),
        ("rdma-erdma", "plain-1", Some("ofed")),
    ] {
        let line = format!("kubectl -n {namespace} rollout status ds/ack-rdma-dp-ds");
        operator.at_desk(&line);
        assert_eq!(operator.nodes_of(&format!("-n {namespace}")), [node]);
        let conf = cluster.get(&format!("-n {namespace} cm/rdma-devices"));
        let conf = conf[0]["data"]["config.json"].as_str().expect("text");
        let conf: Value = serde_json::from_str(conf).expect("JSON");
        assert_eq!(conf["erdma"]["preferDriver"].as_str(), mode, "{conf}");
    }
    for line in [
        "helm -n kube-system uninstall rdma",
        "helm -n rdma-erdma uninstall rdma",
        "kubectl delete namespace rdma-erdma",
        "kubectl label node rdma-1 plain-1 rdma-nics-",
        "kubectl label node plain-1 aliyun.accelerator/rdma-",
    ] {
        operator.at_desk(line);
    }
    are_gone(cluster);
}

fn has_policy(cluster: &ControlPlane, wanted: &str) -> bool {
    let policies = cluster.get("validatingadmissionpolicies");
    let mut names = policies.iter().map(|it| &it["metadata"]["name"]);
    names.any(|name| name == wanted)
}

/// Waits until `kube-system` has no pods.
pub(super) fn are_gone(cluster: &mut ControlPlane) {
    cluster.until("no pods are left in kube-system", |it| {
        it.start_bound_pods();
        it.get("pods -n kube-system").is_empty()
    });
}

fn blocks_with_helm(page: &str) -> Vec<Block> {
    let mut blocks = pages::blocks(page);
    // the first heading needs release files, which the test `published` of rdma-device-plugin makes
    let elsewhere = ["Without internet access", KINDS];
    blocks.retain(|it| !elsewhere.contains(&it.heading.as_str()));
    blocks.retain(|it| it.lines.iter().any(|line| line.starts_with("helm ")));
    blocks
}

/// Types the block as an operator does: line by line, or at once if it is a shell loop.
fn types(cluster: &mut ControlPlane, block: &Block) {
    if block.lines[0].starts_with("for ") {
        cluster.shell(&block.lines.join("\n"));
        return;
    }
    for line in &block.lines {
        if let Some(name) = line.split("rollout status ds/").nth(1) {
            manifests::roll_out(cluster, name, 1);
        }
        cluster.shell(line);
    }
}
