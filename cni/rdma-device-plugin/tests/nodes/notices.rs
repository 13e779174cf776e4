// SPDX-License-Identifier: Apache-2.0
//! Tests of warnings about a node that works only in part.

use super::node;
use daemon_conf::Conf;
use node_state::notices::notices;
use offer::{Offer, PreviousOffers, Unhealthy, offers};
use rdma_netns::Inventory;
use std::{collections::BTreeSet, path::Path};

fn warnings(text: &str, inventory: &Inventory) -> Vec<String> {
    with_offers(text, inventory, |conf, offers| {
        notices(conf, offers, inventory)
    })
}

/// Returns the result of `evaluate` for a node with `inventory` and the configuration `text`.
fn with_offers<T>(text: &str, inventory: &Inventory, evaluate: impl Fn(&Conf, &[Offer]) -> T) -> T {
    let conf = Conf::parse(text, Path::new("f")).expect(text).conf;
    let (offers, _) = offers(
        &conf,
        inventory,
        &BTreeSet::new(),
        &Unhealthy::new(),
        &PreviousOffers::default(),
    );
    evaluate(&conf, &offers)
}

#[test]
fn a_resource_that_the_operator_leaves_out_is_a_warning() {
    let inventory = node("lacp-bonds");
    let resources = "resources: [{name: rdma/hca, kind: shared}, {name: rdma/roce, kind: shared}]";
    let text = format!("{resources}\nchain: {{plugin: {{resources: [rdma/hca]}}}}");
    let warned = warnings(&text, &inventory);
    assert_eq!(warned.len(), 1, "{warned:?}");
    let start = "rdma/roce is not in chain.plugin.resources: pods that request it start without RDMA netdevs; ";
    assert!(warned[0].starts_with(start), "{warned:?}");
    for right in [
        "",
        "chain: {}",
        "chain: {plugin: {resources: [rdma/roce, rdma/hca]}}",
        "chain: {plugin: {devices: [{netdev: bond0}]}}",
        "chain: {plugin: {capabilities: {deviceID: true}}}",
    ] {
        let text = format!("{resources}\n{right}");
        assert_eq!(warnings(&text, &inventory), [] as [&str; 0], "{right}");
    }
}

/// The operator added the resource to the configuration while the daemon ran.
#[test]
fn a_resource_that_the_entry_does_not_have_yet_is_a_warning() {
    let inventory = node("lacp-bonds");
    let resources = "resources: [{name: rdma/hca, kind: shared}, {name: rdma/roce, kind: shared}]";
    let text = format!("{resources}\nchain: {{}}");
    let warned = with_offers(&text, &inventory, |conf, offers| {
        let mut conf = conf.clone();
        let chain = Conf::parse("mode: hca\nchain: {}", Path::new("f"));
        conf.chain = chain.expect("a configuration").conf.chain;
        notices(&conf, offers, &inventory)
    });
    assert_eq!(warned.len(), 1, "{warned:?}");
    let start = "rdma/roce is not in the entry of rdma-cni: ";
    assert!(warned[0].starts_with(start), "{warned:?}");
}

#[test]
fn a_node_without_the_connection_manager() {
    let mut less = node("lacp-bonds");
    less.connection_manager = None;
    let warned = warnings(r#"{"mode":"hca"}"#, &less);
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].contains("modprobe rdma_ucm"), "{warned:?}");
    assert!(warned[0].contains("/etc/modules-load.d"), "{warned:?}");
    // the module is loaded, and the file is another device's
    let mut other = node("lacp-bonds");
    let manager = other.connection_manager.as_mut().expect("rdma_cm");
    manager.node = Some((10, 9));
    let warned = warnings(r#"{"mode":"hca"}"#, &other);
    assert_eq!(warned.len(), 1, "{warned:?}");
    let start = "/dev/infiniband/rdma_cm has the device number 10:9 instead of ";
    assert!(warned[0].starts_with(start), "{warned:?}");
    let end = "; remove this file, and reload the module rdma_ucm";
    assert!(warned[0].ends_with(end), "{warned:?}");
    // the daemon offers no device
    let mut none = node("no-rdma");
    none.connection_manager = None;
    assert_eq!(warnings(r#"{"mode":"hca"}"#, &none), [] as [&str; 0]);
}
