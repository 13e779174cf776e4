// SPDX-License-Identifier: Apache-2.0
use super::*;
use rdma_netns::{Gid, Hca, HcaPort, PciPath};
use serde_json::json;

/// Entries of a netdev, with RoCE v1 beside v2 or without.
fn entries(netdev: &str, addresses: u32, with_v1: bool) -> Vec<Gid> {
    let kinds = [GidKind::InfinibandOrRoceV1, GidKind::RoceV2];
    let kinds = &kinds[usize::from(!with_v1)..];
    let each = (0..addresses).flat_map(|_| kinds);
    let gid = |kind: &GidKind| Gid {
        index: 0,
        ip: "fd00::1".parse().expect("an address"),
        kind: *kind,
        netdev: Some(netdev.to_owned()),
    };
    each.map(gid).collect()
}

fn device(link_type: LinkType, parent: Option<&str>) -> OfferedDevice {
    OfferedDevice {
        address: "0000:3b:00.0".to_owned().try_into().expect("an address"),
        hca: Hca {
            name: "mlx5_0".into(),
            ports: vec![HcaPort {
                number: 1,
                state: 4,
                link_type,
            }],
            char_devices: Vec::new(),
            sub_devices: Vec::new(),
            firmware: None,
            soft: false,
            is_erdma: false,
            kernel_users: Vec::new(),
        },
        numa_node: None,
        path: PciPath::default(),
        data_direct: None,
        mac: None,
        parent: parent.map(str::to_owned),
        fault: None,
    }
}

/// A function whose netdev is a port of `bond0`.
fn inventory() -> Inventory {
    let netdev = json!({"name": "ens1", "mac": "02:00:00:00:00:01", "master": "bond0"});
    let function = json!({"address": "0000:3b:00.0", "netdevs": [netdev]});
    serde_json::from_value(json!({"functions": [function]})).expect("an inventory")
}

fn fits(parent: Option<&str>, size: u32, gids: &[Vec<Gid>]) -> Option<u32> {
    let gids = gids.concat();
    let table = |name: &str, port: u32| {
        assert_eq!((name, port), ("mlx5_0", 1));
        Some(GidTable { size, gids })
    };
    fitting(&device(LinkType::Ether, parent), &inventory(), table)
}

#[test]
fn a_pod_takes_as_many_entries_as_the_netdev_of_its_child() {
    let node = || entries("bond0", 2, true);
    assert_eq!(fits(None, 128, &[node()]), Some(31));
    // pods are there already
    assert_eq!(
        fits(None, 128, &[node(), entries("rdma0", 40, true)]),
        Some(31)
    );
    assert_eq!(fits(None, 1024, &[entries("bond0", 3, false)]), Some(340));
    // the node has no address yet, and pods will have one
    assert_eq!(fits(None, 128, &[entries("bond0", 1, true)]), Some(31));
    let vlan = entries("bond0.100", 3, true);
    assert_eq!(fits(Some("bond0.100"), 128, &[node(), vlan]), Some(19));
    assert_eq!(fits(None, 5, &[node()]), Some(1));
}

#[test]
fn a_table_without_the_netdevs_addresses_bounds_nothing() {
    assert_eq!(
        fits(None, 1, &[entries("bond0", 1, true)[..1].to_vec()]),
        None
    );
    assert_eq!(fits(None, 128, &[]), None);
    let infiniband = device(LinkType::Infiniband, None);
    assert_eq!(
        fitting(&infiniband, &inventory(), |_, _| panic!("read")),
        None
    );
    assert_eq!(
        fitting(&device(LinkType::Ether, None), &inventory(), |_, _| None),
        None
    );
}
