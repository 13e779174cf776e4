// SPDX-License-Identifier: Apache-2.0
//! Tests of `parents`, which names the parent netdev for pods' children on a device. With two resources, two tenants
//! can thus share one NIC.

use crate::node;
use daemon_conf::Conf;
use node_state::ipv6_prerequisite;
use offer::{Offer, PreviousOffers, Unhealthy, offers, table};
use rdma_device_plugin::dra::pool::Netdevs;
use rdma_netns::{Inventory, Vlan};
use serde_json::json;
use std::{collections::BTreeSet, path::Path};

const TENANTS: &str = r#"
resources:
- {name: rdma/tenant-a, kind: shared, parents: ["bond*.100"]}
- {name: rdma/tenant-b, kind: perNic, count: 2, parents: [bond0.200]}
- {name: rdma/hca, kind: shared, parents: ["bond?"]}
"#;

fn conf(text: &str) -> Conf {
    Conf::parse(text, Path::new("f"))
        .expect("a configuration")
        .conf
}

/// Returns a node with two bonds. Each bond has the VLANs 100 and 200.
fn bonds() -> Inventory {
    node("lacp-bonds")
}

fn each_vlan(inventory: &mut Inventory, mut change: impl FnMut(&mut Vec<Vlan>)) {
    let netdevs = inventory
        .functions
        .iter_mut()
        .flat_map(|it| &mut it.netdevs);
    netdevs.for_each(|netdev| change(&mut netdev.vlans));
}

fn of(conf: &Conf, inventory: &Inventory, previous: &PreviousOffers) -> (Vec<Offer>, Vec<String>) {
    let (none, healthy) = (BTreeSet::new(), Unhealthy::new());
    offers(conf, inventory, &none, &healthy, previous)
}

/// Returns one line for each device: resource, device, parent, fault.
fn seen(offers: &[Offer]) -> Vec<String> {
    let devices = offers.iter().flat_map(|offer| {
        let line = |it: &offer::OfferedDevice| {
            let parent = it.parent.as_deref().unwrap_or("-");
            let fault = it.fault.as_deref().unwrap_or("healthy");
            format!("{} {} {parent} {fault}", offer.name, it.hca.name)
        };
        offer.devices.iter().map(line)
    });
    devices.collect()
}

#[test]
fn two_resources_are_two_tenants_of_one_nic() {
    let conf = conf(TENANTS);
    let inventory = bonds();
    let mut addressed = inventory.clone();
    let functions = addressed.functions.iter_mut();
    for netdev in functions.flat_map(|it| &mut it.netdevs) {
        netdev.ipv6_prefix = Some("fd00:1::/64".into());
    }
    let (offers, remarks) = of(&conf, &inventory, &PreviousOffers::default());
    assert_eq!(
        seen(&offers),
        [
            "rdma/tenant-a mlx5_bond_0 bond0.100 healthy",
            "rdma/tenant-a mlx5_bond_1 bond1.100 healthy",
            "rdma/tenant-b mlx5_bond_0 bond0.200 healthy",
            "rdma/hca mlx5_bond_0 bond0 healthy",
            "rdma/hca mlx5_bond_1 bond1 healthy",
        ]
    );
    assert_eq!(remarks, [] as [&str; 0]);
    // the content that `rdma-cni` reads
    let published = |at: usize| serde_json::to_value(offers[at].published()).expect("JSON");
    assert_eq!(
        published(0),
        json!({
            "sharing": "shared",
            "every": ["0000:3b:00.0", "0000:5e:00.0"],
            "parents": {"0000:3b:00.0": "bond0.100", "0000:5e:00.0": "bond1.100"},
        })
    );
    assert_eq!(
        published(1),
        json!({
            "sharing": "shared",
            "byId": {"mlx5_bond_0/0": ["0000:3b:00.0"], "mlx5_bond_0/1": ["0000:3b:00.0"]},
            "parents": {"0000:3b:00.0": "bond0.200"},
        })
    );
    let (_, grants) = offers[1]
        .answer(&["mlx5_bond_0/1".to_owned()], &inventory)
        .expect("an answer");
    assert_eq!(grants[0].devices[0].parent.as_deref(), Some("bond0.200"));
    // slices have the addresses of the parent netdev, but the addresses of a VLAN are unknown
    let prefixes = |at: usize| {
        let nics = Netdevs::default().nics(&offers[at], &addressed, &Default::default());
        nics.into_iter()
            .map(|it| it.ipv6_prefix)
            .collect::<Vec<_>>()
    };
    assert_eq!(prefixes(0), [None, None]);
    let bonds = ["fd00:1::/64", "fd00:1::/64"].map(|it| Some(it.to_owned()));
    assert_eq!(prefixes(2), bonds);
    let table = table(&conf.resources, &offers, &inventory, &Unhealthy::new(), &[]);
    assert!(
        table.contains("ens1f0 (bond0), pods on bond0.100"),
        "{table}"
    );
}

/// Claims serve the resources, and a claim's record has the parent netdev of each NIC.
#[test]
fn tenants_by_claims_are_offered_as_tenants_by_ids_are() {
    let by_ids = of(&conf(TENANTS), &bonds(), &PreviousOffers::default());
    let claims = conf(&format!("{TENANTS}dra: {{}}"));
    let (offers, remarks) = of(&claims, &bonds(), &PreviousOffers::default());
    assert_eq!(remarks, [] as [&str; 0]);
    assert_eq!(seen(&offers), seen(&by_ids.0));
    assert!(offers.iter().all(|it| claims.by_claims(&it.name)));
}

#[test]
fn a_netdev_that_goes_takes_the_devices_ids_along_until_it_is_back() {
    let conf = conf(TENANTS);
    let before = PreviousOffers::of(&of(&conf, &bonds(), &PreviousOffers::default()).0);
    let mut without = bonds();
    each_vlan(&mut without, |vlans| {
        vlans.retain(|it| it.name != "bond0.100")
    });
    let (offers, remarks) = of(&conf, &without, &before);
    let missing = "none of its netdevs (bond0, bond0.200) matches parents (bond*.100)";
    assert_eq!(
        seen(&offers)[..2],
        [
            format!("rdma/tenant-a mlx5_bond_0 - {missing}"),
            "rdma/tenant-a mlx5_bond_1 bond1.100 healthy".to_owned(),
        ]
    );
    assert_eq!(
        remarks,
        [format!(
            "resources[0]: 0000:3b:00.0 (mlx5_bond_0) cannot be used by rdma/tenant-a: {missing}"
        )]
    );
    let published = serde_json::to_value(offers[0].published()).expect("JSON");
    assert_eq!(published["every"], json!(["0000:5e:00.0"]));
    // the pod gets no device without its parent netdev, just as it gets no unhealthy device
    let (_, grants) = offers[0]
        .answer(&["0".to_owned()], &without)
        .expect("an answer");
    assert_eq!(grants[0].devices.len(), 1);

    let mut down = bonds();
    each_vlan(&mut down, |vlans| {
        vlans.iter_mut().for_each(|it| it.up = false)
    });
    let (offers, _) = of(&conf, &down, &before);
    assert_eq!(
        seen(&offers)[2],
        "rdma/tenant-b mlx5_bond_0 bond0.200 bond0.200 is down; run ip link set dev bond0.200 up"
    );
    assert!(offers[1].ids.iter().all(|id| !id.healthy));
    assert!(offers[2].ids.iter().all(|id| id.healthy));

    let (offers, remarks) = of(&conf, &bonds(), &before);
    assert!(offers.iter().flat_map(|it| &it.ids).all(|id| id.healthy));
    assert_eq!(remarks, [] as [&str; 0]);
}

#[test]
fn a_device_without_such_a_netdev_is_in_no_resource_unless_a_selector_names_it() {
    let tenants = conf(TENANTS);
    let mut inventory = bonds();
    each_vlan(&mut inventory, Vec::clear);
    let (offers, remarks) = of(&tenants, &inventory, &PreviousOffers::default());
    assert_eq!(offers.len(), 1, "{remarks:?}");
    assert_eq!(
        remarks[0],
        "resources[0]: no selected RDMA device of this node has a netdev that matches parents (bond*.100), so \
         rdma/tenant-a is not offered"
    );
    let named = conf(
        "resources: [{name: rdma/a, kind: shared, parents: [bond0.100], devices: [{netdev: bond0}]}]",
    );
    let (offers, _) = of(&named, &inventory, &PreviousOffers::default());
    assert_eq!(
        seen(&offers),
        ["rdma/a mlx5_bond_0 - none of its netdevs (bond0) matches parents (bond0.100)"]
    );
}

#[test]
fn one_netdev_of_a_device_has_to_fit() {
    let conf = conf("resources: [{name: rdma/a, kind: shared, parents: [\"bond0.*\"]}]");
    let (offers, _) = of(&conf, &bonds(), &PreviousOffers::default());
    assert_eq!(
        seen(&offers),
        [
            "rdma/a mlx5_bond_0 - parents (bond0.*) matches bond0.100, bond0.200, and must match only one netdev of a device"
        ]
    );
    assert!(offers[0].ids.iter().all(|id| !id.healthy));
}

/// The host's default route uses the bond. This is no reason to leave out the VLAN that `parents` names.
#[test]
fn parents_name_a_device_as_selectors_do() {
    let mut inventory = bonds();
    for function in &mut inventory.functions {
        function.netdevs[0].default_route = true;
    }
    let all = conf("resources: [{name: rdma/hca, kind: shared}]\nchain: {}");
    let tenants = conf(TENANTS);
    let none = PreviousOffers::default();
    assert_eq!(of(&all, &inventory, &none).0.len(), 0);
    assert_eq!(of(&tenants, &inventory, &none).0.len(), 3);
}

/// The addresses derive from the VLAN, and not from the bond.
#[test]
fn pods_ipv6_addresses_come_from_the_parent() {
    let conf = conf(&format!(
        "{TENANTS}chain: {{plugin: {{resources: [rdma/tenant-a, rdma/tenant-b], ipam: {{type: rdma-ipam, from: parent}}}}}}"
    ));
    let inventory = bonds();
    let (offers, _) = of(&conf, &inventory, &PreviousOffers::default());
    let parents = ipv6_prerequisite::parents(conf.chain.as_ref(), &offers, &inventory);
    let names: Vec<String> = parents.iter().map(ToString::to_string).collect();
    assert_eq!(
        names,
        [
            "bond0.100 (mlx5_bond_0)",
            "bond0.200 (mlx5_bond_0)",
            "bond1.100 (mlx5_bond_1)",
        ]
    );
}
