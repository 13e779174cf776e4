// SPDX-License-Identifier: Apache-2.0
//! Tests of the examples under `conf/device-plugin/`: the daemon accepts them, and makes the offers that they promise.

use daemon_conf::Conf;
use node_state::erdma::discover;
use offer::{Offer, PreviousOffers, Unhealthy, offers};
use rdma_netns::Inventory;
use rdma_resources::Sharing::{self, Exclusive, Shared};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Expected offer of one resource of an example.
struct Given {
    name: &'static str,
    ids: usize,
    first: &'static str,
    sharing: Sharing,
    devices: &'static [&'static str],
    /// Number of advertised ids on each NUMA node.
    on_nodes: &'static [(i64, usize)],
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn folder() -> PathBuf {
    root().join("../../conf/device-plugin")
}

/// Returns the offers of the example on the node `layout`, and true if containers get CDI names.
fn offered(example: &str, layout: &str) -> (Vec<Offer>, bool) {
    let parsed = Conf::read(&folder().join(example)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(parsed.remarks, [] as [&str; 0], "{example}");
    let node = root().join("tests/nodes").join(layout).join("node.json");
    let node: Inventory = cases::read_as(&node);
    // an instance id that no example names
    let found = discover(&parsed.conf.erdma, &node, Some("i-other"));
    let hidden = found.hidden_addresses();
    let (offers, mut remarks) = offers(
        &parsed.conf,
        &node,
        &hidden,
        &Unhealthy::default(),
        &PreviousOffers::default(),
    );
    remarks.retain(|it| !it.contains("because erdma.exposedLocalERIs does not select it"));
    assert_eq!(remarks, [] as [&str; 0], "{example} on {layout}");
    (offers, parsed.conf.cdi)
}

#[track_caller]
fn gives(example: &str, layout: &str, cdi: bool, wanted: &[Given]) {
    let (offers, by_name) = offered(example, layout);
    assert_eq!(by_name, cdi);
    let names: Vec<_> = offers.iter().map(|offer| offer.name.as_str()).collect();
    let wanted_names: Vec<_> = wanted.iter().map(|given| given.name).collect();
    assert_eq!(names, wanted_names);
    for (offer, given) in offers.iter().zip(wanted) {
        let devices: Vec<_> = offer.devices.iter().map(|it| &*it.address).collect();
        assert_eq!(devices, given.devices, "{}", given.name);
        assert_eq!(offer.sharing, given.sharing, "{}", given.name);
        let list = offer.list();
        assert_eq!(list.len(), given.ids, "{}", given.name);
        assert_eq!(list[0].id, given.first);
        assert!(list.iter().all(|it| it.health == "Healthy"));
        let mut on_nodes: BTreeMap<i64, usize> = BTreeMap::new();
        for node in list
            .iter()
            .flat_map(|it| &it.topology)
            .flat_map(|it| &it.nodes)
        {
            *on_nodes.entry(node.id).or_default() += 1;
        }
        let on_nodes: Vec<_> = on_nodes.into_iter().collect();
        assert_eq!(on_nodes, given.on_nodes, "{}", given.name);
    }
}

#[test]
fn there_is_a_test_for_each() {
    let entries = fs::read_dir(folder()).expect("the examples");
    let mut found: Vec<_> = entries
        .map(|entry| entry.expect("an example").file_name())
        .collect();
    found.sort();
    let tested = [
        "10-shared-bonds.yaml",
        "20-shared-by-numa-node.yaml",
        "30-exclusive-vfs.yaml",
        "40-erdma.yaml",
        "45-erdma-exposed.yaml",
        "50-as-it-was.json",
        "60-two-tenants.yaml",
        "70-environment.yaml",
    ];
    assert_eq!(found, tested);
}

/// Both tenants get the same bonds, each by its own VLAN.
#[test]
fn two_tenants_have_the_same_bonds() {
    let given = ["rdma/tenant-a", "rdma/tenant-b"].map(|name| Given {
        name,
        ids: 1000,
        first: "0",
        sharing: Shared,
        devices: &["0000:3b:00.0", "0000:5e:00.0"],
        on_nodes: &[],
    });
    gives("60-two-tenants.yaml", "lacp-bonds", false, &given);
    let (offers, _) = offered("60-two-tenants.yaml", "lacp-bonds");
    let devices = offers.iter().flat_map(|it| &it.devices);
    let parents: Vec<_> = devices.filter_map(|it| it.parent.as_deref()).collect();
    let expected = ["bond0.100", "bond1.100", "bond0.200", "bond1.200"];
    assert_eq!(parents, expected);
}

#[test]
fn bonds_are_shared_by_all() {
    let given = Given {
        name: "rdma/hca",
        ids: 1000,
        first: "0",
        sharing: Shared,
        devices: &["0000:3b:00.0", "0000:5e:00.0"],
        // empty: the bonds are on two NUMA nodes, and each id has both bonds
        on_nodes: &[],
    };
    gives("10-shared-bonds.yaml", "lacp-bonds", false, &[given]);
}

#[test]
fn containers_get_their_pods_rails() {
    let given = Given {
        name: "rdma/hca",
        ids: 1000,
        first: "0",
        sharing: Shared,
        devices: &["0000:3b:00.0", "0000:5e:00.0"],
        on_nodes: &[],
    };
    gives("70-environment.yaml", "lacp-bonds", true, &[given]);
    let (offers, _) = offered("70-environment.yaml", "lacp-bonds");
    let environment = &offers[0].environment;
    assert!(environment.has_rails() && environment.has_files());
}

#[test]
fn ids_are_spread_over_numa_nodes() {
    let given = Given {
        name: "rdma/hca",
        ids: 1000,
        first: "0",
        sharing: Shared,
        devices: &[
            "0000:1a:00.0",
            "0000:2b:00.0",
            "0000:3c:00.0",
            "0000:4d:00.0",
            "0000:9a:00.0",
            "0000:ab:00.0",
            "0000:bc:00.0",
            "0000:cd:00.0",
        ],
        on_nodes: &[(0, 500), (1, 500)],
    };
    gives("20-shared-by-numa-node.yaml", "eight-hcas", false, &[given]);
}

#[test]
fn virtual_functions_are_one_pods_alone() {
    let vf = Given {
        name: "rdma/vf",
        ids: 2,
        first: "0000:3b:00.2",
        sharing: Exclusive,
        devices: &["0000:3b:00.2", "0000:3b:00.3"],
        on_nodes: &[(0, 2)],
    };
    let storage = Given {
        name: "rdma/vf-storage",
        first: "0000:3b:00.4",
        devices: &["0000:3b:00.4", "0000:3b:00.5"],
        ..vf
    };
    gives("30-exclusive-vfs.yaml", "four-vfs", true, &[vf, storage]);
}

#[test]
fn erdma_has_ids_of_each_nic() {
    let given = Given {
        name: "aliyun/erdma",
        ids: 600,
        first: "erdma_0/0",
        sharing: Shared,
        devices: &["0000:00:15.0", "0000:00:16.0", "0000:00:17.0"],
        on_nodes: &[(0, 400), (1, 200)],
    };
    gives("40-erdma.yaml", "erdma-two-functions", false, &[given]);
}

#[test]
fn exposed_erdma_nics_go_together() {
    let given = Given {
        name: "aliyun/erdma",
        ids: 400,
        first: "erdma_1/0",
        sharing: Shared,
        devices: &["0000:00:16.0", "0000:00:17.0"],
        // empty: the NICs are on two NUMA nodes, and each id has both NICs
        on_nodes: &[],
    };
    gives(
        "45-erdma-exposed.yaml",
        "erdma-two-functions",
        false,
        &[given],
    );
}

#[test]
fn the_old_config_map_is_taken_as_it_was() {
    let given = Given {
        name: "rdma/hca",
        ids: 1000,
        first: "0",
        sharing: Shared,
        devices: &["0000:3b:00.0", "0000:5e:00.0"],
        on_nodes: &[],
    };
    gives("50-as-it-was.json", "lacp-bonds", false, &[given]);
}
