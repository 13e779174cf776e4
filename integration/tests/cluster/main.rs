// SPDX-License-Identifier: Apache-2.0
//! Files of `conf/` for a cluster, and commands that the documentation gives to an operator, on a real API server with
//! its controllers and scheduler. There is no kubelet: the lab tests the pods themselves.

mod claims;
mod examples;
mod fabric;
mod helm;
mod kubectl;
mod manifests;
mod migrate;
mod multus;
mod pages;
mod pod_policy;
mod refused;
mod report;
mod roce;
mod whereabouts;

use integration::ControlPlane;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The label of nodes with RDMA in the manifests.
const LABEL: &str = "aliyun.accelerator/rdma=true";

/// The daemon's DaemonSet, as an argument of `kubectl rollout status`.
const DAEMON_SET: &str = "-n kube-system ds/ack-rdma-dp-ds";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the repository")
        .to_owned()
}

fn text(path: &str) -> String {
    let file = root().join(path);
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"))
}

/// The YAML files of a directory of the repository: their paths in the repository, sorted.
fn yaml_files(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(directory)).expect("a directory");
    let mut files: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| format!("{directory}/{}", name.to_string_lossy()))
        .filter(|name| name.ends_with(".yaml"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no YAML in {directory}");
    files
}

/// A cluster with a node with RDMA, `rdma-1`, and a node without RDMA, `plain-1`.
#[track_caller]
fn cluster() -> ControlPlane {
    let mut cluster = ControlPlane::start();
    let resources = [
        ("rdma/hca", "1k"),
        ("rdma/vf", "14"),
        ("rdma/nic", "8"),
        ("aliyun/erdma", "400"),
        ("nvidia.com/gpu", "16"),
    ];
    cluster.add_node("rdma-1", &resources);
    // also sets the label of Node Feature Discovery, by which one set of the tests' values selects nodes
    cluster.kubectl(&format!(
        "label node rdma-1 {LABEL} feature.node.kubernetes.io/rdma.available=true"
    ));
    cluster.add_node("plain-1", &[]);
    // objects that sets of values name and the chart does not create
    cluster.kubectl("-n kube-system create serviceaccount rdma");
    cluster.kubectl("create priorityclass cluster-rdma --value=1000");
    cluster
}

/// One cluster serves all steps, because its start takes long.
#[test]
fn a_cluster_takes_what_conf_has_and_what_the_pages_say() {
    let mut cluster = cluster();
    manifests::taken_strictly_and_as_they_are(&mut cluster);
    manifests::any_one_becomes_any_other(&mut cluster);
    manifests::podsecurity_stops_them_where_it_is_enforced(&mut cluster);
    examples::all_are_taken(&mut cluster);
    examples::those_that_podsecurity_refuses_are_reported(&mut cluster);
    refused::are_deleted_by_the_daemon_of_their_node(&mut cluster);
    report::is_by_the_daemon_of_its_node_and_of_its_own_condition(&mut cluster);
    pod_policy::refuses_what_could_change_a_shared_nic(&mut cluster);
    pages::every_kustomization_works(&cluster);
    pages::get_started_installs(&mut cluster);
    roce::pods_get_an_address_of_each_rail(&cluster);
    pages::every_command_works(&mut cluster);
    helm::every_block_works(&mut cluster);
    helm::a_foreign_owners_objects_are_handed_over(&mut cluster);
    helm::two_kinds_of_nodes_have_a_release_each(&mut cluster);
    migrate::the_binary_of_rdma_cni_is_put_back(&mut cluster);
    migrate::what_the_erdma_controller_leaves_goes(&mut cluster);
    migrate::a_policys_section_is_put_back(&mut cluster);
    migrate::a_node_goes_to_ours_and_back(&mut cluster);
    migrate::a_claim_for_dranets_users_is_taken(&cluster);
    multus::passes_a_pods_arguments(&mut cluster);
    whereabouts::gives_each_rail_an_address_and_gets_it_back(&mut cluster);
}

/// Uses its own cluster, whose nodes get no resource from a device plugin.
#[test]
fn resources_are_allocated_by_claims_as_far_as_the_api_server_can() {
    let mut cluster = ControlPlane::start();
    claims::are_prepared_by_the_daemon_of_their_node(&mut cluster);
}

/// Uses its own cluster, whose node has the resource of the watch.
#[test]
fn the_fabric_watch_writes_the_config_map_of_its_node() {
    let mut cluster = ControlPlane::start();
    cluster.add_node("rdma-1", &[("rdma/connection-manager", "2")]);
    cluster.kubectl(&format!("label node rdma-1 {LABEL}"));
    fabric::writes_the_config_map_of_its_node(&mut cluster);
}
