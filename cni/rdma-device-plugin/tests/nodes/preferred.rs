// SPDX-License-Identifier: Apache-2.0
//! Tests of the preferred NICs beside a container's GPUs, from `<layout>/preferred.yaml`. The NICs are exclusive.

use crate::{node, root, text, tree::Tree};
use daemon_conf::Conf;
use offer::{Accelerators, Offer, PreviousOffers, Unhealthy, offers};
use rdma_device_plugin::dra::pool::Netdevs;
use rdma_netns::{DeviceAddress, Inventory, PciPath};
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
    /// GPUs of the container; empty: unknown.
    own: Vec<DeviceAddress>,
    /// NICs that other containers have.
    #[serde(default)]
    gone: Vec<String>,
    /// Preferred NICs, as many as the container requests.
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

/// Checks the cases in the file `path` with `inventory`. Returns the number of cases.
#[track_caller]
fn is_preferred(path: &Path, inventory: &Inventory) -> usize {
    let preferred: Preferred = serde_saphyr::from_str(&text(path)).expect("cases");
    let offer = exclusive(inventory);
    for case in &preferred.cases {
        let own: BTreeSet<DeviceAddress> = case.own.iter().cloned().collect();
        let accelerators = Accelerators::of_container(inventory, &own);
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
            "{path:?} ({}), {:?}: {:#?}",
            preferred.about, case.own, found.reasons
        );
    }
    preferred.cases.len()
}

#[test]
fn nics_are_preferred_as_each_layout_specifies() {
    let layouts = layouts().into_iter();
    let seen: usize = layouts
        .map(|(layout, path)| is_preferred(&path, &node(&layout)))
        .sum();
    assert!(seen > 12, "{seen} cases");
}

/// The preferences of a layout do not change if the test reads the layout from a made-up sysfs tree, with all bridges
/// and, in one layout, NVSwitches. NVSwitches are neither GPUs nor NICs, and no preference depends on them.
#[test]
fn nics_are_preferred_by_the_tree_of_each_layout() {
    let mut layouts_read = BTreeSet::new();
    for (layout, path) in layouts() {
        let described = node(&layout);
        let mut tree = Tree::of(&described);
        if layout == "hgx-h100" {
            // below the switch of two GPUs, as on the real board
            let bridges = ["0000:15:01.0", "0000:16:00.0", "0000:17:07.0"];
            let switches = [
                "0000:1e:00.0",
                "0000:1f:00.0",
                "0000:20:00.0",
                "0000:21:00.0",
            ];
            tree = tree.with_nvswitches("pci0000:15", &bridges, &switches);
        }
        let read = tree.read();
        assert_eq!(places(&read), places(&described), "{layout}");
        assert_eq!(read.accelerators, described.accelerators, "{layout}");
        assert_eq!(read.sockets, described.sockets, "{layout}");
        is_preferred(&path, &read);
        layouts_read.insert(layout);
    }
    for layout in ["b200-snc", "gb200", "gb300", "hgx-h100"] {
        assert!(layouts_read.contains(layout), "{layouts_read:?}");
    }
}

/// Returns the position of each RDMA NIC, and of its Data Direct function.
fn places(inventory: &Inventory) -> Vec<(&str, Option<u32>, &PciPath, Option<&PciPath>)> {
    let nics = inventory.functions.iter().filter(|it| !it.hcas.is_empty());
    nics.map(|it| {
        let device = &it.device;
        let address: &str = &device.address;
        (address, device.numa_node, &it.path, it.data_direct.as_ref())
    })
    .collect()
}

/// NVIDIA's DRA driver sets the same attributes for GPUs, with the same values. `pcieRoot` matches a GPU with a NIC if
/// one PCI root is above the GPU and the NIC, or above the GPU and the NIC's Data Direct function. `numaNode` also
/// matches a GPU with a NIC below another root.
#[test]
fn claims_know_roots_and_numa_nodes() {
    let placed = |layout: &str| -> Vec<(String, String, u32)> {
        let inventory = node(layout);
        let nics = Netdevs::default().nics(&exclusive(&inventory), &inventory, &Default::default());
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
    // each root is that of the GPU nearest to the NIC
    assert_eq!(
        placed("gb300"),
        [
            row("0000:03:00.0", "pci0008:00", 0),
            row("0002:03:00.0", "pci0009:00", 0),
            row("0010:03:00.0", "pci0018:00", 1),
            row("0012:03:00.0", "pci0019:00", 1),
        ]
    );
}

/// A NIC is degraded while a port of its bond has no carrier, or while another NIC of its model is faster.
#[test]
fn claims_know_degraded_nics() {
    let degraded = |inventory: &Inventory| -> Vec<Option<String>> {
        let nics = Netdevs::default().nics(&exclusive(inventory), inventory, &Default::default());
        nics.into_iter().map(|nic| nic.degraded).collect()
    };
    let mut bonds = node("lacp-bonds");
    assert_eq!(degraded(&bonds), [None, None]);
    bonds.functions[3].netdevs[0].carrier = false;
    let port = Some("port ens2f1 of bond1 has no carrier".to_owned());
    assert_eq!(degraded(&bonds), [None, port.clone()]);
    for (function, speed) in [(0, 100_000), (2, 400_000)] {
        bonds.functions[function].netdevs[0].speed = Some(speed);
    }
    let slower = "its speed is 100000 Mbit/s, and a NIC of the same model has 400000 Mbit/s";
    assert_eq!(degraded(&bonds), [Some(slower.to_owned()), port]);
}
