// SPDX-License-Identifier: Apache-2.0
//! CDI entries of offered and granted devices.

use crate::{Offer, answer::containers_devices, select::hca_of};
use rdma_netns::{DeviceAddress, Inventory};
use rdma_resources::{
    CharNode, Grant,
    cdi::{CONNECTION_MANAGER, Entry},
};
use std::collections::BTreeMap;

/// Returns one CDI entry for each present RDMA device of the offers. If the offers have devices, also returns an entry
/// for the connection manager (`rdma_cm`) of the node, if any.
pub fn cdi_entries(offers: &[Offer], inventory: &Inventory) -> Vec<Entry> {
    let mut devices: BTreeMap<&DeviceAddress, bool> = BTreeMap::new();
    for offer in offers {
        for device in &offer.devices {
            *devices.entry(&device.address).or_default() |= offer.umad;
        }
    }
    entries(&devices, inventory)
}

/// Adds the entries that containers have by `grants`, and that `entries` lacks: a device can leave its resource while
/// containers have it, and the runtime resolves the CDI names of a container again when it restarts the container.
///
/// A grant outlives its pod, until the next grant of the id. There is at most one entry for each present RDMA device.
pub fn add_granted(entries: &mut Vec<Entry>, grants: &[Grant], inventory: &Inventory) {
    let mut devices: BTreeMap<&DeviceAddress, bool> = BTreeMap::new();
    for device in grants.iter().filter(|it| it.cdi).flat_map(|it| &it.devices) {
        let mut kinds = device.char_devices.iter().map(CharNode::kind);
        *devices.entry(&device.address).or_default() |= kinds.any(|it| it != "uverbs");
    }
    let mut granted = self::entries(&devices, inventory);
    granted.retain(|it| !entries.iter().any(|offered| offered.name == it.name));
    entries.append(&mut granted);
}

/// Returns the entries of `devices`, and of the connection manager if there are any `devices`. A device with the value
/// true also has its `umad` and `issm` devices.
fn entries(devices: &BTreeMap<&DeviceAddress, bool>, inventory: &Inventory) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (address, umad) in devices {
        let Some(hca) = inventory.function(address).and_then(hca_of) else {
            continue;
        };
        let nodes = containers_devices(&hca.char_devices, *umad).map(CharNode::from);
        entries.push(Entry {
            name: address.to_string(),
            nodes: nodes.collect(),
        });
    }
    let manager = inventory.connection_manager.as_ref();
    entries.extend(
        manager
            .filter(|_| !devices.is_empty())
            .map(|manager| Entry {
                name: CONNECTION_MANAGER.to_owned(),
                nodes: vec![CharNode::from(manager)],
            }),
    );
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn only_lacking_entries_of_present_devices_granted_by_name_are_added() {
        let node = |name: &str| json!({"name": name, "major": 231, "minor": 0});
        let function = |number: u32| {
            let nodes = ["uverbs", "umad", "issm"].map(|it| node(&format!("{it}{number}")));
            let hca = json!({"name": format!("mlx5_{number}"), "char_devices": nodes});
            json!({"address": format!("0000:3b:00.{number}"), "hcas": [hca]})
        };
        let functions = [0, 1, 2, 3].map(function);
        let inventory = json!({"functions": functions, "connection_manager": node("rdma_cm")});
        let inventory: Inventory = from_value(inventory).expect("an inventory");
        let grant = |number: u32, cdi: bool, nodes: &[&str]| -> Grant {
            let nodes: Vec<_> = nodes.iter().map(|it| node(it)).collect();
            let device = json!({
                "address": format!("0000:3b:00.{number}"), "rdma": "mlx5_9", "charDevices": nodes,
            });
            let grant = json!({
                "format": 2, "resource": "rdma/x", "id": number.to_string(), "sharing": "shared",
                "cdi": cdi, "devices": [device],
            });
            from_value(grant).expect("a grant")
        };
        let grants = [
            // the number at the time of the grant, which another device has now
            grant(0, true, &["uverbs3"]),
            grant(1, true, &["uverbs1", "umad1"]),
            grant(2, true, &["uverbs2", "umad2"]),
            grant(3, false, &["uverbs3"]),
            grant(4, true, &["uverbs4"]),
        ];
        let offered = Entry {
            name: "0000:3b:00.2".to_owned(),
            nodes: vec![],
        };
        let mut entries = vec![offered];
        add_granted(&mut entries, &grants, &inventory);
        let found = entries.iter().map(|entry| {
            let nodes = entry.nodes.iter().map(|it| it.name.as_str());
            (entry.name.as_str(), nodes.collect::<Vec<_>>())
        });
        let expected = [
            ("0000:3b:00.2", vec![]),
            ("0000:3b:00.0", vec!["uverbs0"]),
            ("0000:3b:00.1", vec!["uverbs1", "umad1", "issm1"]),
            ("rdma_cm", vec!["rdma_cm"]),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
        let mut by_path = vec![];
        add_granted(&mut by_path, &grants[3..4], &inventory);
        assert_eq!(by_path, []);
    }
}
