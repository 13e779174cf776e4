// SPDX-License-Identifier: Apache-2.0
//! Resources of the node's slices.

use crate::{
    conf::{Allocate, Ids},
    node::Node,
    offer::{Offer, OfferedDevice},
};
use ::dra::{Nic, Resource};
use ::lldp::{Neighbour, Switches, joined};
use rdma_netns::{DeviceAddress, HardwareAddress, Inventory, LinkType};
use rdma_resources::Sharing;
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
};

/// Last observed netdevs of the node's namespace by device; a netdev that is in a pod keeps its attributes.
#[derive(Clone, Debug, Default)]
pub struct Netdevs(BTreeMap<DeviceAddress, Netdev>);

#[derive(Clone, Debug, Default)]
struct Netdev {
    name: Option<String>,
    bond: Option<String>,
    link_layer: Option<LinkType>,
    mtu: Option<u32>,
    speed: Option<u32>,
    ipv6_prefix: Option<String>,
    ipv6: Option<Ipv6Addr>,
    ipv4: Option<Ipv4Addr>,
    mac: Option<HardwareAddress>,
    firmware: Option<String>,
}

impl Netdevs {
    /// Returns the resources of `node` that claims serve, and remembers the attributes of their netdevs.
    pub fn resources(&mut self, node: &Node) -> Vec<Resource> {
        let resource = |offer: &Offer| Resource {
            name: offer.name.to_string(),
            whole: is_whole(offer),
            shared: offer.sharing == Sharing::Shared,
            // a fault of the parent netdev is one of configuration, and pods may work on
            evict: !offer.has_parents && node.conf.dra.as_ref().is_some_and(|dra| dra.evict),
            short: offer.short.clone(),
            nics: self.nics(offer, &node.inventory, &node.switches),
        };
        offers(node).map(resource).collect()
    }

    /// Returns the NICs of `offer`, and remembers the attributes of their netdevs.
    pub fn nics(&mut self, offer: &Offer, inventory: &Inventory, switches: &Switches) -> Vec<Nic> {
        for device in &offer.devices {
            let known = self.0.entry(device.address.clone()).or_default();
            known.see(device, inventory);
        }
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

    fn nic(&self, device: &OfferedDevice, inventory: &Inventory, switches: &Switches) -> Nic {
        let switches = switches.of(&device.address, inventory);
        let mut netdev = self.0.get(&device.address).cloned().unwrap_or_default();
        let hardware = inventory.function(&device.address);
        let hardware = hardware.map(|it| inventory.maker(it));
        // Data Direct reaches the memory of GPUs below its own root
        let path = device.data_direct.as_ref().unwrap_or(&device.path);
        let own = [&netdev.name, &netdev.bond];
        if device.parent.is_some() && !own.contains(&&device.parent) {
            // the addresses of a VLAN are unknown
            (netdev.ipv6_prefix, netdev.ipv6, netdev.ipv4) = (None, None, None);
        }
        Nic {
            address: device.address.to_string(),
            rdma: device.hca.name.clone(),
            netdev: netdev.name,
            bond: netdev.bond,
            link_layer: netdev.link_layer.and_then(|it| match it {
                LinkType::Ether => Some("ethernet".to_owned()),
                LinkType::Infiniband => Some("infiniband".to_owned()),
                LinkType::Other => None,
            }),
            mtu: netdev.mtu,
            speed: netdev.speed,
            ipv6_prefix: netdev.ipv6_prefix,
            ipv6_address: netdev.ipv6.map(|it| it.to_string()),
            ipv4_address: netdev.ipv4.map(|it| it.to_string()),
            hardware_address: netdev.mac.map(|it| it.to_string()),
            firmware: netdev.firmware,
            driver: hardware.and_then(|it| it.driver.clone()),
            vendor: hardware.and_then(|it| it.vendor.clone()),
            physical_function: hardware
                .and_then(|it| it.physical_function.as_ref())
                .map(ToString::to_string),
            numa_node: device.numa_node,
            pcie_root: Some(path.host_bridge.clone()).filter(|it| !it.is_empty()),
            switch: joined(&switches, Neighbour::switch),
            switch_port: joined(&switches, Neighbour::port),
            fault: device.fault.clone(),
            degraded: None,
        }
    }
}

impl Netdev {
    fn see(&mut self, device: &OfferedDevice, inventory: &Inventory) {
        let function = inventory.function(&device.address);
        if let Some(seen) = function.and_then(|it| it.netdevs.first()) {
            self.name = Some(seen.name.clone());
            // a master that takes all frames of the netdev is no bond
            let bond = seen.master.clone().filter(|_| seen.taken_by.is_none());
            self.bond = bond;
            self.mtu = seen.mtu;
            self.ipv6_prefix.clone_from(&seen.ipv6_prefix);
            (self.ipv6, self.ipv4) = (seen.ipv6, seen.ipv4);
            self.mac = Some(seen.mac.clone());
            // a netdev without a carrier has no speed
            self.speed = seen.speed.or(self.speed);
        }
        let firmware = device.hca.firmware.clone();
        self.firmware = firmware.or(self.firmware.take());
        if let Some(port) = device.hca.ports.first() {
            self.link_layer = Some(port.link_type);
        }
    }
}

/// Returns a sentence if a port of the NIC's bond has no carrier.
fn without_port(nic: &Nic, inventory: &Inventory) -> Option<String> {
    let bond = nic.bond.as_ref()?;
    let netdevs = inventory.functions.iter().flat_map(|it| &it.netdevs);
    let mut ports = netdevs.filter(|it| it.master.as_ref() == Some(bond));
    let port = ports.find(|it| !it.carrier)?;
    Some(format!("{} in {bond} has no carrier", port.name))
}

/// Returns a sentence if the NIC is slower than the `fastest` NIC of the same model in its resource.
fn slower(nic: &Nic, fastest: Option<u32>) -> Option<String> {
    let (speed, fastest) = (nic.speed?, fastest?);
    (speed < fastest)
        .then(|| format!("it has {speed} Mbit/s, and a NIC of the same model has {fastest}"))
}

/// Returns the offers of `node` that claims serve.
pub fn offers(node: &Node) -> impl Iterator<Item = &Offer> {
    let offers = node.offers.iter();
    offers.filter(|offer| node.conf.by_claims(&offer.name))
}

/// Returns true if each id of the offer has all of its devices.
fn is_whole(offer: &Offer) -> bool {
    let all = Allocate::All;
    matches!(offer.kind, Ids::Shared { allocate, .. } | Ids::PerNic { allocate, .. } if allocate == all)
}
