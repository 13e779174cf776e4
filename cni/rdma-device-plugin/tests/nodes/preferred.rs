// SPDX-License-Identifier: Apache-2.0
//! Which NICs are preferred beside a container's GPUs: `<layout>/preferred.yaml`, of NICs that are one pod's alone.

use crate::{node, root, text};
use rdma_device_plugin::{
    conf::Conf,
    dra::pool::Netdevs,
    offer::{Accelerators, Offer, PreviousOffers, Unhealthy, offers},
};
use rdma_netns::{DeviceAddress, Inventory};
use serde::Deserialize;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Preferred {
    about: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// The container's GPUs; empty: not known.
    own: Vec<DeviceAddress>,
    /// NICs that others have.
    #[serde(default)]
    gone: Vec<String>,
    /// The NICs, as many as the container asks for.
    preferred: Vec<String>,
}

fn layouts() -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(root()).expect("the layouts");
    let paths = entries.map(|entry| entry.expect("a layout").path().join("preferred.yaml"));
    let with = paths.filter(|path| path.exists()).map(|path| {
        let layout = path.parent().and_then(Path::file_name).expect("a name");
        (layout.to_string_lossy().into_owned(), path)
    });
    with.collect()
}

fn exclusive(inventory: &Inventory) -> Offer {
    let text = r#"{"resources":[{"name":"rdma/nic","kind":"exclusive"}]}"#;
    let parsed = Conf::parse(text, Path::new("config")).expect("a configuration");
    let (none, healthy) = (BTreeSet::new(), Unhealthy::new());
    let previous = PreviousOffers::default();
    let (mut offers, _) = offers(&parsed.conf, inventory, &none, &healthy, &previous);
    offers.pop().expect("an offer")
}

#[test]
fn nics_are_preferred_as_each_layout_says() {
    let mut seen = 0;
    for (layout, path) in layouts() {
        let preferred: Preferred = serde_saphyr::from_str(&text(&path)).expect("cases");
        let inventory = node(&layout);
        let offer = exclusive(&inventory);
        for case in &preferred.cases {
            let own: BTreeSet<DeviceAddress> = case.own.iter().cloned().collect();
            let accelerators = Accelerators::of_container(&inventory, &own);
            assert_eq!(
                accelerators.all.len(),
                match own.len() {
                    0 => inventory.accelerators.len(),
                    some => some,
                }
            );
            let ids = offer.ids.iter().map(|id| id.id.clone());
            let available: Vec<String> = ids.filter(|id| !case.gone.contains(id)).collect();
            let size = case.preferred.len();
            let found = offer.prefer(&available, &[], size, &accelerators);
            assert_eq!(
                found.ids, case.preferred,
                "{layout} ({}), {:?}: {:#?}",
                preferred.about, case.own, found.reasons
            );
            seen += 1;
        }
    }
    assert!(seen > 12, "{seen} cases");
}

/// GPUs have the same attributes of the same values by NVIDIA's driver for claims: `pcieRoot` brings a GPU and the NIC
/// beside it together where they are below one root, and `numaNode` where each has a root of its own.
#[test]
fn claims_know_roots_and_numa_nodes() {
    let placed = |layout: &str| -> Vec<(String, String, u32)> {
        let inventory = node(layout);
        let nics = Netdevs::default().nics(&exclusive(&inventory), &inventory);
        let place = |nic: dra::Nic| {
            let root = nic.pcie_root.expect("a root");
            (nic.address, root, nic.numa_node.expect("a NUMA node"))
        };
        nics.into_iter().map(place).collect()
    };
    let row = |address: &str, root: &str, node| (address.to_owned(), root.to_owned(), node);
    assert_eq!(
        placed("hgx-h100")[..3],
        [
            row("0000:18:00.0", "pci0000:15", 0),
            row("0000:19:00.0", "pci0000:15", 0),
            row("0000:3a:00.0", "pci0000:37", 0),
        ]
    );
    assert_eq!(
        placed("gb200"),
        [
            row("0000:03:00.0", "pci0000:00", 0),
            row("0002:03:00.0", "pci0002:00", 0),
            row("0006:03:00.0", "pci0006:00", 0),
            row("0010:03:00.0", "pci0010:00", 1),
            row("0012:03:00.0", "pci0012:00", 1),
            row("0016:03:00.0", "pci0016:00", 1),
        ]
    );
}
