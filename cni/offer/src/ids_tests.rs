// SPDX-License-Identifier: Apache-2.0
use super::*;
use rdma_netns::{Hca, PciPath};
use std::collections::BTreeMap;

fn devices(count: usize) -> Vec<OfferedDevice> {
    (0..count)
        .map(|index| OfferedDevice {
            address: format!("0000:{:02x}:00.0", 0x1a + 0x11 * index)
                .try_into()
                .expect("an address"),
            hca: Hca {
                name: format!("mlx5_{index}"),
                ports: Vec::new(),
                char_devices: Vec::new(),
                sub_devices: Vec::new(),
                firmware: None,
                soft: false,
                node_guid: None,
                is_erdma: false,
                kernel_users: Vec::new(),
            },
            numa_node: Some(if index * 2 < count { 0 } else { 1 }),
            path: PciPath::default(),
            data_direct: None,
            mac: None,
            parent: None,
            fault: None,
        })
        .collect()
}

/// Returns the address of each id's device.
fn addresses(count: u32, devices: &[OfferedDevice]) -> Vec<&str> {
    let chosen = spread(count, devices);
    assert_eq!(chosen.len(), count as usize);
    chosen
        .iter()
        .map(|index| &*devices[*index].address)
        .collect()
}

#[test]
fn every_device_has_its_share_of_ids() {
    for (ids, count) in [(1000, 8), (1000, 7), (1000, 1), (5, 8), (8000, 8)] {
        let devices = devices(count);
        let mut load: BTreeMap<&str, u32> = BTreeMap::new();
        for address in addresses(ids, &devices) {
            *load.entry(address).or_default() += 1;
        }
        let share = f64::from(ids) / count as f64;
        for (address, load) in load {
            let load = f64::from(load);
            assert!(
                load >= (share * 0.9).floor() && load <= (share * 1.1).ceil(),
                "{address} has {load} of {ids} ids on {count} devices"
            );
        }
    }
}

#[test]
fn few_ids_change_their_device_when_one_comes_or_goes() {
    let nine = devices(9);
    let before = addresses(1000, &nine);
    for gone in 0..9 {
        let mut eight = nine.clone();
        eight.remove(gone);
        let after = addresses(1000, &eight);
        let moved = before.iter().zip(&after).filter(|(a, b)| a != b).count();
        // at least one ninth of the ids must change their device; equal shares require a few more
        assert!((111..140).contains(&moved), "{moved} moved without {gone}");
    }
}

#[test]
fn an_id_has_the_numa_node_of_its_device() {
    let kind = Ids::Shared {
        count: 100,
        allocate: Allocate::Numa,
    };
    let mut two = devices(2);
    two[1].numa_node = None;
    for id in ids(kind, &two, &|_| true) {
        let expected: &[u32] = if id.devices == [0] { &[0] } else { &[] };
        assert_eq!(id.numa_nodes, expected, "{}", id.id);
    }
}

#[test]
fn an_id_for_all_has_a_node_only_if_all_are_on_it() {
    let kind = Ids::Shared {
        count: 1,
        allocate: Allocate::All,
    };
    for (nodes, expected) in [
        ([Some(1), Some(1)], vec![1]),
        ([Some(0), Some(1)], vec![]),
        ([Some(0), None], vec![]),
        ([None, None], vec![]),
    ] {
        let mut two = devices(2);
        for (device, node) in two.iter_mut().zip(nodes) {
            device.numa_node = node;
        }
        let ids = ids(kind, &two, &|_| true);
        assert_eq!(ids[0].numa_nodes, expected, "{nodes:?}");
        assert_eq!(ids[0].devices, [0, 1]);
    }
}

#[test]
fn an_id_is_healthy_while_one_of_its_devices_is() {
    let devices = devices(2);
    let all = |healthy: &dyn Fn(&OfferedDevice) -> bool, allocate| {
        let kind = Ids::PerNic { count: 1, allocate };
        ids(kind, &devices, healthy)
            .into_iter()
            .map(|id| (id.id, id.healthy))
            .collect::<Vec<_>>()
    };
    let first = |device: &OfferedDevice| device.hca.name == "mlx5_0";
    let ids = |first: bool, second: bool| {
        vec![
            ("mlx5_0/0".to_owned(), first),
            ("mlx5_1/0".to_owned(), second),
        ]
    };
    assert_eq!(all(&first, Allocate::Numa), ids(true, false));
    assert_eq!(all(&first, Allocate::All), ids(true, true));
    assert_eq!(all(&|_| false, Allocate::All), ids(false, false));
}
