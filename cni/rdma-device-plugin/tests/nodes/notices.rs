// SPDX-License-Identifier: Apache-2.0
//! Warnings about a node that works in part.

use super::node;
use rdma_device_plugin::{
    conf::Conf,
    notices::notices,
    offer::{PreviousOffers, Unhealthy, offers},
};
use rdma_netns::Inventory;
use std::{collections::BTreeSet, path::Path};

fn warnings(text: &str, inventory: &Inventory) -> Vec<String> {
    let conf = Conf::parse(text, Path::new("f")).expect(text).conf;
    let (offers, _) = offers(
        &conf,
        inventory,
        &BTreeSet::new(),
        &Unhealthy::new(),
        &PreviousOffers::default(),
    );
    notices(&conf, &offers, inventory)
}

#[test]
fn a_resource_that_the_chain_leaves_out() {
    let node = node("lacp-bonds");
    let resources = "resources: [{name: rdma/hca, kind: shared}, {name: rdma/roce, kind: shared}]";
    let warned = warnings(
        &format!("{resources}\nchain: {{plugin: {{resources: [rdma/hca]}}}}"),
        &node,
    );
    assert_eq!(warned.len(), 1, "{warned:?}");
    let start = "rdma/roce is not in chain.plugin.resources: ";
    assert!(warned[0].starts_with(start), "{warned:?}");
    for right in [
        "",
        "chain: {}",
        "chain: {plugin: {resources: [rdma/roce, rdma/hca]}}",
        "chain: {plugin: {devices: [{netdev: bond0}]}}",
        "chain: {plugin: {capabilities: {deviceID: true}}}",
    ] {
        let warned = warnings(&format!("{resources}\n{right}"), &node);
        assert_eq!(warned, [] as [&str; 0], "{right}");
    }
}

#[test]
fn a_node_without_the_connection_manager() {
    let mut less = node("lacp-bonds");
    less.connection_manager = None;
    let warned = warnings(r#"{"mode":"hca"}"#, &less);
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].contains("modprobe rdma_ucm"), "{warned:?}");
    assert!(warned[0].contains("/etc/modules-load.d"), "{warned:?}");
    // nothing is offered
    let mut none = node("no-rdma");
    none.connection_manager = None;
    assert_eq!(warnings(r#"{"mode":"hca"}"#, &none), [] as [&str; 0]);
}
