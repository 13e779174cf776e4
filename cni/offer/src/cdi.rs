// SPDX-License-Identifier: Apache-2.0
//! CDI entries of offered devices.

use crate::{Offer, answer::containers_devices, select::hca_of};
use rdma_netns::{DeviceAddress, Inventory};
use rdma_resources::{
    CharNode,
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
    let mut entries = Vec::new();
    for (address, umad) in &devices {
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
