// SPDX-License-Identifier: Apache-2.0
//! Tests the number of ids of shared devices, which depends on the length of their GID tables.

use crate::node;
use daemon_conf::Conf;
use offer::{Offer, PreviousOffers, Unhealthy, offers};
use rdma_netns::Inventory;
use rdma_resources::{Published, published};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

const IPV6: &str = r#"{"chain": {"plugin": {"ipam": {"type": "rdma-ipam", "from": "parent"}}}, "resources": [RESOURCE]}"#;

/// A node whose two bonds have GID tables of these lengths.
fn bonds(lengths: [u32; 2]) -> Inventory {
    let mut inventory = node("lacp-bonds");
    let hcas = inventory.functions.iter_mut().flat_map(|it| &mut it.hcas);
    let mut ports = hcas.map(|it| &mut it.ports);
    for length in lengths {
        for port in ports.next().expect("a bond") {
            port.gids = length;
        }
    }
    inventory
}

/// Returns the offer of `resource` in `conf`, and the remarks about its number of ids.
fn of(
    conf: &str,
    resource: &str,
    lengths: [u32; 2],
    previous: &PreviousOffers,
) -> (Offer, Vec<String>) {
    let parsed = Conf::parse(&conf.replace("RESOURCE", resource), Path::new("f"));
    let conf = parsed.expect("a configuration").conf;
    let (none, healthy) = (BTreeSet::new(), Unhealthy::new());
    let (mut offers, mut remarks) = offers(&conf, &bonds(lengths), &none, &healthy, previous);
    remarks.retain(|it| it.contains("pods fit"));
    (offers.remove(0), remarks)
}

#[test]
fn as_many_ids_are_offered_as_pods_fit() {
    let none = PreviousOffers::default();
    let shared = r#"{"name": "rdma/hca", "kind": "shared"}"#;
    let ids = |conf: &str, resource: &str, lengths| {
        let (offer, remarks) = of(conf, resource, lengths, &none);
        assert_eq!(remarks, [""; 0]);
        offer.ids.len()
    };
    assert_eq!(ids(IPV6, shared, [128, 256]), 28);
    let both = IPV6.replace(
        r#""from": "parent""#,
        r#""from": "parent", "family": "both""#,
    );
    assert_eq!(ids(&both, shared, [256, 256]), 40);
    let ipv4 = IPV6.replace(
        r#""from": "parent""#,
        r#""from": "parent", "family": "ipv4""#,
    );
    assert_eq!(ids(&ipv4, shared, [256, 256]), 60);
    // each device has room for 28 pods
    let numa = r#"{"name": "rdma/hca", "kind": "shared", "allocate": "numa"}"#;
    assert_eq!(ids(IPV6, numa, [128, 128]), 56);
    let each = r#"{"name": "rdma/hca", "kind": "perNic"}"#;
    assert_eq!(ids(IPV6, each, [128, 128]), 56);
    assert_eq!(ids(IPV6, each, [4096, 4096]), 400);
    // each id has both devices
    let all = r#"{"name": "rdma/hca", "kind": "perNic", "allocate": "all"}"#;
    assert_eq!(ids(IPV6, all, [128, 128]), 28);

    for (conf, lengths, why) in [
        (IPV6, [0, 0], "unknown tables"),
        (IPV6, [1, 1], "iWARP"),
        (IPV6, [4096, 4096], "long tables"),
        (r#"{"resources": [RESOURCE]}"#, [128, 128], "no chain"),
    ] {
        assert_eq!(ids(conf, shared, lengths), 1000, "{why}");
    }
    let moves = IPV6.replace(r#"{"ipam""#, r#"{"mode": "move", "ipam""#);
    assert_eq!(ids(&moves, shared, [128, 128]), 1000, "no children");
    let alone = r#"{"name": "rdma/hca", "kind": "exclusive"}"#;
    assert_eq!(ids(IPV6, alone, [128, 128]), 2);
}

#[test]
fn as_many_claims_as_ids_may_have_a_device() {
    let none = PreviousOffers::default();
    let dra = IPV6.replacen('{', r#"{"dra": {}, "#, 1);
    let sharers = |resource: &str, lengths| {
        let (offer, remarks) = of(&dra, resource, lengths, &none);
        assert_eq!(remarks, [""; 0]);
        offer.sharers()
    };
    for scheme in [
        r#""kind": "shared""#,
        r#""kind": "shared", "allocate": "numa""#,
        r#""kind": "perNic""#,
        r#""kind": "perNic", "allocate": "all""#,
    ] {
        let resource = format!(r#"{{"name": "rdma/hca", {scheme}}}"#);
        assert_eq!(sharers(&resource, [128, 256]), Some(28), "{scheme}");
    }
    let shared = r#"{"name": "rdma/hca", "kind": "shared"}"#;
    assert_eq!(sharers(shared, [0, 0]), Some(1000));
    let some = r#"{"name": "rdma/hca", "kind": "perNic", "count": 5}"#;
    assert_eq!(sharers(some, [128, 128]), Some(5));
    let alone = r#"{"name": "rdma/hca", "kind": "exclusive"}"#;
    assert_eq!(sharers(alone, [128, 128]), None);

    // while a driver is loaded again no device has a table
    let (before, _) = of(&dra, shared, [128, 128], &none);
    let previous = PreviousOffers::of(&[before]);
    let (reloading, _) = of(&dra, shared, [0, 0], &previous);
    assert_eq!(reloading.sharers(), Some(28));

    // with claims the number can fall, because the scheduler counts the claims itself
    let (before, _) = of(&dra, shared, [256, 256], &none);
    assert_eq!(before.sharers(), Some(60));
    let (shorter, remarks) = of(&dra, shared, [128, 256], &PreviousOffers::of(&[before]));
    assert_eq!((shorter.sharers(), remarks), (Some(28), vec![]));
}

#[test]
fn resources_of_one_device_have_parts_of_its_table() {
    let of = |conf: &str, resources: &str| {
        let (offer, remarks) = of(conf, resources, [128, 256], &PreviousOffers::default());
        (offer.ids.len(), remarks)
    };
    let a = r#"{"name": "rdma/a", "kind": "shared"}"#;
    let b = r#"{"name": "rdma/b", "kind": "perNic", "devices": [{"netdev": "bond0"}]}"#;
    let second = b.replace("bond0", "bond1");
    let counted =
        |resource: &str, count| resource.replacen('{', &format!(r#"{{"count": {count}, "#), 1);
    for (resources, expected) in [
        ([a, b], 14),
        // the second device has room for 60 pods
        ([a, &second], 28),
        ([a, &counted(b, 8)], 20),
        ([a, &counted(b, 28)], 1),
        ([&counted(a, 20), &counted(b, 8)], 20),
    ] {
        assert_eq!(of(IPV6, &resources.join(", ")), (expected, vec![]));
    }
    let (ids, remarks) = of(IPV6, &[counted(a, 20), counted(b, 20)].join(", "));
    assert_eq!((ids, remarks.len()), (20, 2));
    assert!(
        remarks[0].contains("rdma/a has 20 ids, and 8 pods fit"),
        "{remarks:?}"
    );
    // without children, pods of the other resource have no addresses in the GID table
    let only = IPV6.replace(r#"{"ipam""#, r#"{"resources": ["rdma/a"], "ipam""#);
    assert_eq!(of(&only, &[a, b].join(", ")), (28, vec![]));
}

#[test]
fn a_configured_number_stays_and_a_remark_names_the_one_that_fits() {
    let more = r#"{"name": "rdma/hca", "kind": "shared", "count": 29}"#;
    let (offer, remarks) = of(IPV6, more, [128, 128], &PreviousOffers::default());
    assert_eq!(offer.ids.len(), 29);
    let expected = "resources[0]: rdma/hca has 29 ids, and 28 pods fit into the GID tables: ADD of a further pod \
                    fails; set the number of ids to 28";
    assert_eq!(remarks, [expected]);
}

#[test]
fn no_id_is_taken_away_until_the_node_reboots() {
    let shared = r#"{"name": "rdma/hca", "kind": "shared"}"#;
    let (before, _) = of(IPV6, shared, [256, 256], &PreviousOffers::default());
    let state = tempfile::tempdir().expect("a directory");
    let publish = |offer: &Offer, boot_id: Option<&str>| {
        let published = Published {
            format: published::FORMAT,
            cdi_dir: None,
            boot_id: boot_id.map(str::to_owned),
            resources: [("rdma/hca".to_owned(), offer.published())].into(),
            chain_names_resources: false,
            physical_functions: BTreeMap::new(),
        };
        published.write(state.path()).expect("written");
        PreviousOffers::read(state.path())
    };
    let this = rdma_resources::limited::boot_id().expect("an id");
    // a driver that was loaded again has a shorter table
    for previous in [
        PreviousOffers::of(std::slice::from_ref(&before)),
        publish(&before, Some(&this)),
    ] {
        let (offer, remarks) = of(IPV6, shared, [128, 256], &previous);
        assert_eq!(offer.ids.len(), 60);
        let expected = "resources[0]: rdma/hca has 60 ids, and 28 pods fit into the GID tables: ADD of a further pod \
                        fails; the ids stay until the node reboots, because pods may have them";
        assert_eq!(remarks, [expected]);
        let (longer, _) = of(IPV6, shared, [512, 512], &previous);
        assert_eq!(longer.ids.len(), 124);
        let moves = IPV6.replace(r#"{"ipam""#, r#"{"mode": "move", "ipam""#);
        let (moved, _) = of(&moves, shared, [128, 256], &previous);
        assert_eq!(moved.ids.len(), 1000, "no children");
    }
    // while a driver is loaded again no device has a table
    let (reloading, remarks) = of(IPV6, shared, [0, 0], &publish(&before, Some(&this)));
    assert_eq!((reloading.ids.len(), remarks), (60, vec![]));
    let after = publish(&reloading, Some(&this));
    assert_eq!(of(IPV6, shared, [128, 256], &after).0.ids.len(), 60);
    let rebooted = publish(&before, Some("another boot"));
    assert_eq!(of(IPV6, shared, [128, 256], &rebooted).0.ids.len(), 28);

    // an earlier version did not derive the number from the tables, and offered the default
    let (earlier, _) = of(IPV6, shared, [0, 0], &PreviousOffers::default());
    let upgraded = publish(&earlier, None);
    assert_eq!(of(IPV6, shared, [128, 256], &upgraded).0.ids.len(), 1000);
    // the daemon does not remember a number that it did not derive from a table
    let unknown = publish(&earlier, Some(&this));
    assert_eq!(of(IPV6, shared, [128, 256], &unknown).0.ids.len(), 28);
    let unknown = PreviousOffers::of(std::slice::from_ref(&earlier));
    assert_eq!(of(IPV6, shared, [128, 256], &unknown).0.ids.len(), 28);
}
