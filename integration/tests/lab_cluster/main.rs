// SPDX-License-Identifier: Apache-2.0
//! In the lab, a real cluster of one node: `scripts/test lab cluster`. Control plane, kubelet and container runtime are
//! real. The daemon runs from the image in the DaemonSet's pod, and installs the chain. The operator's commands are
//! those of the pages.

mod chart;
mod install;
mod kubectl;
mod operations;
mod pods;
mod refused;
mod upgrade;
mod without_ipv6;

use integration::{Cluster, Netns, Snapshot, container_runtime::installed::Files};
use std::fs;

/// The page with the commands.
const PAGE: &str = "docs/deploy.md";

/// Directories in which an installation may write, in addition to kubelet's own directories and [`STATES`].
const PLACES: [&str; 3] = ["/etc/cni", "/opt/cni", "/var/run/cdi"];

/// A directory, and the directories below it that may remain after the removal: the state of the daemon and the chain,
/// and the files that IPAM plugins and the runtime's CNI library keep for networks. Nothing else may be in the
/// directory.
const STATES: (&str, [&str; 3]) = ("/var/lib/cni", ["networks", "rdma-cni", "results"]);

/// The files and the network state of a node before the installation.
struct Before {
    files: Files,
    network: Snapshot,
}

impl Before {
    #[track_caller]
    fn of(host: &Netns) -> Self {
        Self {
            files: Files::below(&PLACES),
            network: Snapshot::of(host),
        }
    }

    #[track_caller]
    fn assert_restored(&self, host: &Netns) {
        Files::below(&PLACES).assert_as(&self.files, &[]);
        let (states, known) = STATES;
        for entry in fs::read_dir(states).expect("states") {
            let name = entry.expect("a state").file_name();
            assert!(known.iter().any(|it| name == *it), "{states}/{name:?}");
        }
        self.network.assert_restored(host);
    }
}

/// All steps share one cluster, because its start takes long.
#[test]
fn a_cluster_is_installed_used_and_left_as_it_was() {
    let mut cluster = Cluster::new();
    let before = Before::of(&cluster.nics.host);
    install::by_the_page(&mut cluster);
    pods::without_rails_are_untouched(&mut cluster);
    let [server, first] = pods::of_the_example_have_all_rails(&mut cluster);
    kubectl::shows_the_node_and_its_pods(&cluster);
    kubectl::pings_from_inside_a_pod(&mut cluster);
    pods::outlive_kubelet(&mut cluster, &[&server, &first]);
    let second = pods::one_comes_again(&mut cluster, first);
    pods::have_rdma_between_them(&cluster, [&server, &second]);
    pods::end(&mut cluster, [&server, &second]);
    install::removed_by_the_page(&mut cluster);
    before.assert_restored(&cluster.nics.host);
}

#[test]
#[ignore = "scripts/test --full: an upgrade beside pods, and refused pods, on a cluster of their own"]
fn a_daemon_takes_over_beside_pods_and_deletes_those_that_are_refused() {
    let mut cluster = Cluster::new();
    let before = Before::of(&cluster.nics.host);
    install::by_the_page(&mut cluster);
    let [server, client] = pods::of_the_example_have_all_rails(&mut cluster);
    upgrade::goes_on_beside_pods(&mut cluster, &[&server, &client]);
    pods::end(&mut cluster, [&server, &client]);
    refused::are_deleted_and_come_again(&mut cluster);
    install::removed_by_the_page(&mut cluster);
    before.assert_restored(&cluster.nics.host);
}

#[test]
#[ignore = "scripts/test --full: IPv6 that comes late, restarts, PodSecurity and a drain, on a cluster of their own"]
fn pods_outlive_what_is_started_anew_and_leave_a_node_that_is_drained() {
    let mut cluster = Cluster::new();
    let before = Before::of(&cluster.nics.host);
    without_ipv6::waits_for_an_address(&mut cluster);
    let [server, client] = pods::of_the_example_have_all_rails(&mut cluster);
    operations::start_the_runtime_anew(&mut cluster, &[&server, &client]);
    operations::start_the_api_server_anew(&mut cluster, &[&server, &client]);
    operations::kill_the_daemon(&mut cluster, &[&server, &client]);
    operations::enforce_pod_security(&mut cluster);
    operations::drain_the_node(&mut cluster, [&server, &client]);
    install::removed_by_the_page(&mut cluster);
    before.assert_restored(&cluster.nics.host);
}

#[test]
#[ignore = "scripts/test --full: the chart by Helm itself, on a cluster of its own"]
fn the_chart_is_installed_upgraded_and_removed_below_pods() {
    chart::is_installed_upgraded_and_removed_below_pods();
}
