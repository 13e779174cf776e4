//! What a node offers to kubelet: a pure function of configuration, hardware and health.

use crate::conf::{Conf, ResourceName};
use rdma_netns::{DeviceAddress, Hca, Inventory, PciPath};
use rdma_resources::Sharing;
use std::collections::BTreeMap;

/// One resource as it is advertised.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// The resource.
    pub name: ResourceName,
    /// Whether an id's devices are one pod's alone.
    pub sharing: Sharing,
    /// Its devices, by address.
    pub devices: Vec<OfferedDevice>,
    /// Its ids, in the order in which they are advertised.
    pub ids: Vec<OfferedId>,
    /// Whether containers get devices by CDI names.
    pub cdi: bool,
    /// Whether containers get `umad` and `issm` too.
    pub umad: bool,
}

/// A device of a resource.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferedDevice {
    /// Its PCI function or auxiliary device.
    pub address: DeviceAddress,
    /// Its RDMA device.
    pub hca: Hca,
    /// NUMA node; none: not known.
    pub numa_node: Option<u32>,
    /// Where on PCI it is.
    pub path: PciPath,
    /// Hardware address of its netdev, where that is in this namespace.
    pub mac: Option<String>,
}

/// An id of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedId {
    /// What kubelet calls it.
    pub id: String,
    /// What it stands for: places in [`Offer::devices`].
    pub devices: Vec<usize>,
    /// NUMA nodes of its devices; none: not known, or that of all of them would say nothing.
    pub numa_nodes: Vec<u32>,
    /// Whether kubelet may allocate it.
    pub healthy: bool,
}

/// Devices that are not healthy, each with the reason.
pub type Unhealthy = BTreeMap<DeviceAddress, String>;

/// What a node has to offer, and what in the configuration came to nothing, in words.
pub fn offers(
    _conf: &Conf,
    _inventory: &Inventory,
    _unhealthy: &Unhealthy,
) -> (Vec<Offer>, Vec<String>) {
    unimplemented!()
}
