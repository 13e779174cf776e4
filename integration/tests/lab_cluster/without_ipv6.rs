// SPDX-License-Identifier: Apache-2.0
//! The daemon starts on a node whose NICs have no IPv6 address yet ("Nodes without IPv6" of docs/install.md).

use super::{
    install::{manifest_is_applied, verify},
    pods::{self, PLAIN, PODS},
};
use integration::{
    Cluster,
    container_runtime::{
        installed::{Files, LIST},
        shared::{HCA, has_all_rails, links, nodes_of_all_rails},
    },
    nics,
};
use serde_json::json;
use std::fs;

/// The directory with the list of the network.
const LISTS: [&str; 1] = ["/etc/cni"];

/// The daemon is ready, the list is unchanged, and pods get their devices without rails. When the NICs get addresses,
/// the daemon adds the entry, and a pod gets its rails.
pub(super) fn waits_for_an_address(cluster: &mut Cluster) {
    let lists = Files::below(&LISTS);
    each_address(cluster, "del");
    manifest_is_applied(cluster);
    for (command, expected) in [
        ("rollout status", "successfully rolled out"),
        (
            " logs ",
            "no RDMA NIC of this node has a global IPv6 address",
        ),
    ] {
        let line = verify().into_iter().find(|it| it.contains(command));
        let output = cluster.types(&line.expect("the page has the command"));
        assert!(output.contains(expected), "{output}");
    }
    cluster.until("the node has ids", Cluster::has_ids);
    Files::below(&LISTS).assert_as(&lists, &[]);
    cluster.make(PODS, &pods::pod("early", &json!({HCA: 1})));
    let early = cluster.pod("early");
    assert_eq!(links(&early.netns()), PLAIN);
    assert_eq!(early.main().rdma_nodes(), nodes_of_all_rails());
    cluster.report("a pod has devices and no rails");
    each_address(cluster, "add");
    cluster.until("the network's list has the entry", |_| {
        fs::read_to_string(LIST).is_ok_and(|it| it.contains("\"rdma-cni\""))
    });
    cluster.make(PODS, &pods::pod("late", &json!({HCA: 1})));
    has_all_rails(&cluster.pod("late"));
    cluster.delete(PODS, &["early", "late"]);
    cluster.until("they are gone", |it| it.list(PODS).is_empty());
    cluster.report("with addresses a pod has its rails");
}

/// Adds or removes the NICs' IPv6 addresses.
fn each_address(cluster: &Cluster, verb: &str) {
    for rail in [0, 1] {
        let (address, netdev) = (nics::ipv6_start(rail), nics::netdev(rail));
        let nodad = if verb == "add" { "nodad" } else { "" };
        let line = format!("address {verb} {address}1/64 dev {netdev} {nodad}");
        cluster.nics.host.ip(&line);
    }
}
