// SPDX-License-Identifier: Apache-2.0
//! Resources in the ResourceSlices of the node.

use ::dra::{Nic, Resource};
use ::lldp::{Neighbour, Switches, joined};
use daemon_conf::{Allocate, Ids};
use node_state::node::Node;
use offer::{Offer, OfferedDevice};
use rdma_netns::{DeviceAddress, Inventory, LinkType};
use std::collections::BTreeMap;

/// NICs by device, as last observed. While the netdev of a NIC is in a pod, the NIC keeps the last known attributes of
/// the netdev.
#[derive(Clone, Debug, Default)]
pub struct Netdevs(BTreeMap<DeviceAddress, Nic>);

impl Netdevs {
    /// Returns the resources of `node` that are allocated by claims. Remembers the attributes of their netdevs.
    pub fn resources(&mut self, node: &Node) -> Vec<Resource> {
        let resource = |offer: &Offer| Resource {
            name: offer.name.to_string(),
            whole: is_whole(offer),
            sharers: offer.sharers(),
            // do not evict pods of a resource with `parents`: the fault may be only in the configuration, and the pods
            // may still work
            evict: !offer.has_parents && node.conf.dra.as_ref().is_some_and(|dra| dra.evict),
            short: offer.short.clone(),
            nics: self.nics(offer, &node.inventory, &node.switches),
        };
        node.by_claims().map(resource).collect()
    }

    /// Returns the NICs of `offer`. Remembers the attributes of their netdevs.
    pub fn nics(&mut self, offer: &Offer, inventory: &Inventory, switches: &Switches) -> Vec<Nic> {
        let devices = offer.devices.iter();
        let mut nics: Vec<Nic> = devices
            .map(|it| self.nic(it, inventory, switches))
            .collect();
        let model = |device: &OfferedDevice| {
            let device = &inventory.function(&device.address)?.device;
            Some((device.vendor.as_ref()?, device.device.as_ref()?))
        };
        let models = offer.devices.iter().map(model);
        let mut fastest = BTreeMap::new();
        for (model, nic) in models.clone().zip(&nics) {
            let most = fastest.entry(model).or_insert(nic.speed);
            *most = nic.speed.max(*most);
        }
        for (model, nic) in models.zip(&mut nics) {
            let fastest = model.and_then(|it| *fastest.get(&Some(it))?);
            nic.degraded = without_port(nic, inventory).or_else(|| slower(nic, fastest));
        }
        nics
    }

    /// Returns the NIC of `device`. Remembers the netdev's attributes.
    fn nic(&mut self, device: &OfferedDevice, inventory: &Inventory, switches: &Switches) -> Nic {
        let known = self.0.entry(device.address.clone()).or_default();
        let function = inventory.function(&device.address);
        if let Some(seen) = function.and_then(|it| it.netdevs.first()) {
            known.netdev = Some(seen.name.clone());
            // a master that receives all frames of the netdev, such as a bridge, is not a bond
            known.bond = seen.master.clone().filter(|_| seen.taken_by.is_none());
            known.mtu = seen.mtu;
            known.ipv6_prefix.clone_from(&seen.ipv6_prefix);
            known.ipv6_address = seen.ipv6.map(|it| it.to_string());
            known.ipv4_address = seen.ipv4.map(|it| it.to_string());
            known.hardware_address = Some(seen.mac.to_string());
            // keep the last speed, because a netdev without a carrier reports no speed
            known.speed = seen.speed.or(known.speed);
        }
        let firmware = device.hca.firmware.clone();
        known.firmware = firmware.or(known.firmware.take());
        if let Some(port) = device.hca.ports.first() {
            known.link_layer = match port.link_type {
                LinkType::Ether => Some("ethernet".to_owned()),
                LinkType::Infiniband => Some("infiniband".to_owned()),
                LinkType::Other => None,
            };
        }
        let hardware = function.map(|it| inventory.maker(it));
        let physical_function = hardware.and_then(|it| it.physical_function.as_ref());
        // a NIC with a Data Direct function accesses the memory of GPUs through this function, which is below another
        // PCI root
        let path = device.data_direct.as_ref().unwrap_or(&device.path);
        let switches = switches.of(&device.address, inventory);
        let mut nic = Nic {
            address: device.address.to_string(),
            rdma: device.hca.name.clone(),
            driver: hardware.and_then(|it| it.driver.clone()),
            vendor: hardware.and_then(|it| it.vendor.clone()),
            physical_function: physical_function.map(ToString::to_string),
            numa_node: device.numa_node,
            pcie_root: Some(path.host_bridge.clone()).filter(|it| !it.is_empty()),
            switch: joined(&switches, Neighbour::switch),
            switch_port: joined(&switches, Neighbour::port),
            fault: device.fault.clone(),
            ..known.clone()
        };
        if device.parent.is_some() && ![&nic.netdev, &nic.bond].contains(&&device.parent) {
            // leave out the NIC's addresses: pods' addresses depend on the parent netdev, such as a VLAN, whose
            // addresses are unknown here
            (nic.ipv6_prefix, nic.ipv6_address, nic.ipv4_address) = (None, None, None);
        }
        nic
    }
}

/// Returns a sentence if a port of the NIC's bond has no carrier.
fn without_port(nic: &Nic, inventory: &Inventory) -> Option<String> {
    let bond = nic.bond.as_ref()?;
    let netdevs = inventory.functions.iter().flat_map(|it| &it.netdevs);
    let mut ports = netdevs.filter(|it| it.master.as_ref() == Some(bond));
    let port = ports.find(|it| !it.carrier)?;
    Some(format!("port {} of {bond} has no carrier", port.name))
}

/// Returns a sentence if the NIC is slower than `fastest`. `fastest` is the highest speed of the resource's NICs of the
/// same model.
fn slower(nic: &Nic, fastest: Option<u32>) -> Option<String> {
    let (speed, fastest) = (nic.speed?, fastest?);
    (speed < fastest).then(|| {
        format!("its speed is {speed} Mbit/s, and a NIC of the same model has {fastest} Mbit/s")
    })
}

/// Returns true if each id of the offer has all devices of the offer.
fn is_whole(offer: &Offer) -> bool {
    let all = Allocate::All;
    matches!(offer.kind, Ids::Shared { allocate, .. } | Ids::PerNic { allocate, .. } if allocate == all)
}
