// SPDX-License-Identifier: Apache-2.0
//! Hardware of a node's RDMA resources in any namespace, read only from sysfs and `/dev`
//! ([`Linux::inventory`](crate::Linux::inventory)).

use crate::{CharDevice, Device, DeviceAddress, HardwareAddress, LinkType, RdmaMode, pairing};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
};

/// A node's RDMA hardware.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// PCI functions and auxiliary devices that have, or can have, a netdev or an RDMA device,
    /// by address.
    #[serde(default)]
    pub functions: Vec<Function>,
    /// RDMA devices without a parent in sysfs whose netdev is not seen: it, or both, are in a pod
    /// ([`Self::pair`]). RDMA in software whose namespace is not seen is here, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unpaired: Vec<Hca>,
    /// Namespace mode of the RDMA subsystem (ib_core's parameter `netns_mode`), if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma_mode: Option<RdmaMode>,
    /// GPUs and other accelerators, by address.
    #[serde(default)]
    pub accelerators: Vec<Accelerator>,
    /// The socket of each NUMA node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sockets: BTreeMap<u32, u32>,
    /// `/dev/infiniband/rdma_cm`; none: rdma_ucm is not loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_manager: Option<CharDevice>,
    /// The module of the eRDMA driver; none: it is not loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erdma: Option<ErdmaModule>,
}

/// The module `erdma`, which serves all eRDMA NICs of the node in one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErdmaModule {
    /// Its parameter `compat_mode`; none: it has none, as the driver of mainline Linux.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compat: Option<bool>,
    /// The RDMA stack is that of MLNX_OFED: its module `mlx_compat` is loaded.
    #[serde(default)]
    pub ofed: bool,
}

/// A PCI function or auxiliary device, and what it makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// The device.
    #[serde(flatten)]
    pub device: Device,
    /// Index of the virtual function in its physical function, from 0, or the number of a sub-function. `None`: it is
    /// neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// PCI path (of an auxiliary device: its function's).
    #[serde(default)]
    pub path: PciPath,
    /// Its netdevs that are in this program's namespace; where it has none, those of its RDMA
    /// device ([`pairing`]).
    #[serde(default)]
    pub netdevs: Vec<Netdev>,
    /// The function that these are of, where it is another one: so it is with eRDMA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev_function: Option<DeviceAddress>,
    /// PCI path of another function through which it reaches a GPU's memory: ConnectX-8's Data Direct, below the GPU's
    /// switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_direct: Option<PciPath>,
    /// Its RDMA devices, of all namespaces.
    #[serde(default)]
    pub hcas: Vec<Hca>,
}

/// The way from the root of PCI to a function, the function itself left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciPath {
    /// `pci0000:3a`; empty: not known.
    #[serde(default)]
    pub host_bridge: String,
    /// Root port first, then the ports of switches.
    #[serde(default)]
    pub bridges: Vec<DeviceAddress>,
}

/// Suffix of [`Netdev::taken_by`], behind the master's name.
pub(crate) const ACCELERATED: &str = ", which it accelerates";

/// A netdev, as far as resources go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Netdev {
    /// Its name.
    pub name: String,
    /// Its present hardware address.
    pub mac: HardwareAddress,
    /// Link type.
    #[serde(default)]
    pub link_type: LinkType,
    /// True if it has carrier.
    #[serde(default)]
    pub carrier: bool,
    /// MTU in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Speed in Mbit/s; `None`: no carrier, not reported by the driver, or ports were not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<u32>,
    /// The bond or bridge that it is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<String>,
    /// Owner of all its frames: `the bridge br0`, `Open vSwitch`, `hv0, which it accelerates` (Azure). A bond does not
    /// count: its RDMA device is that of its ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_by: Option<String>,
    /// The VLANs on it, or on the bond that it is a port of, which are in this program's namespace; by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vlans: Vec<Vlan>,
    /// The network of its first IPv6 address that is not link-local, `fd00:1::/64`; of a bond's port it is the bond's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6_prefix: Option<String>,
    /// That address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Addr>,
    /// Its first IPv4 address that is not link-local; of a bond's port it is the bond's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// The default route leaves by it, or by what lies on it: the node would be cut off without it
    /// ([`uplink`](crate::uplink)).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default_route: bool,
}

/// A VLAN, as far as resources go. Its carrier is that of the netdev that it lies on
/// (`vlan_stacked_transfer_operstate()`, `net/8021q/vlan.c`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vlan {
    /// Its name.
    pub name: String,
    /// Set up by its administrator.
    pub up: bool,
}

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hca {
    /// Its name.
    pub name: String,
    /// Its ports, from 1. None: the device is in another namespace, whose sysfs is not this one.
    #[serde(default)]
    pub ports: Vec<HcaPort>,
    /// `uverbs0`, `umad0`, `issm0`; those of its sub-devices, too.
    #[serde(default)]
    pub char_devices: Vec<CharDevice>,
    /// RDMA devices of the same function for subnet management alone (`RDMA_DEVICE_TYPE_SMI`), by name: `smi1` of a
    /// multi-plane NIC, with a port for each plane. They have `umad` devices and no `uverbs` device
    /// (`ib_uverbs_add_one()`, `drivers/infiniband/core/uverbs_main.c`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sub_devices: Vec<String>,
    /// Firmware version; `None`: the device is in another namespace or has none, or ports were not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// RDMA in software on a NIC: its driver is rxe or siw. What lies on a bond counts as the bond's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub soft: bool,
    /// True if it has no parent in sysfs, and eRDMA's driver ([`pairing::is_erdma`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_erdma: bool,
    /// Kernel modules that use it, as [`RdmaDevice::kernel_users`](crate::RdmaDevice::kernel_users).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_users: Vec<String>,
}

/// A port of an RDMA device, as sysfs shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HcaPort {
    /// Number, from 1.
    pub number: u32,
    /// Logical state (`enum ib_port_state`): 1 down, 4 active.
    pub state: u8,
    /// Link type.
    pub link_type: LinkType,
}

/// A PCI function of a display or processing-accelerator class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accelerator {
    /// The function.
    pub address: DeviceAddress,
    /// PCI vendor id, `10de`.
    pub vendor: String,
    /// NUMA node; none: the firmware does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// PCI path.
    #[serde(default)]
    pub path: PciPath,
}

impl Netdev {
    /// The netdev that the RDMA device has its GIDs by: the bond that this one is a port of, or itself.
    pub fn base(&self) -> &str {
        let bond = self.master.as_deref().filter(|_| self.taken_by.is_none());
        bond.unwrap_or(&self.name)
    }

    /// Returns true if the netdev accelerates its master, the netdev of a paravirtual NIC.
    pub fn accelerates(&self) -> bool {
        let taken_by = self.taken_by.as_deref();
        taken_by.is_some_and(|it| it.ends_with(ACCELERATED))
    }
}

impl Inventory {
    /// The function at `address`.
    pub fn function(&self, address: &DeviceAddress) -> Option<&Function> {
        self.functions
            .iter()
            .find(|function| function.device.address == *address)
    }

    /// The functions of the NIC that has the RDMA device of `function`: its own, that of its netdev, and those
    /// that can have made its RDMA device.
    pub fn functions_of<'a>(&'a self, function: &'a Function) -> impl Iterator<Item = &'a Device> {
        let made_by = &function.device.rdma_functions;
        let others = function.netdev_function.iter().chain(made_by);
        let others = others.filter_map(|address| Some(&self.function(address)?.device));
        std::iter::once(&function.device).chain(others)
    }

    /// The device that has made the RDMA device of `function`; where that has no parent, one of those that can have made
    /// it, which have one driver and one PCI ID.
    pub fn maker<'a>(&'a self, function: &'a Function) -> &'a Device {
        let made_by = function.device.rdma_functions.first();
        let made_by = made_by.and_then(|address| self.function(address));
        &made_by.unwrap_or(function).device
    }

    /// Gives the unpaired RDMA device `rdma` to the function at `address`, which has its netdev. Nothing is done
    /// where there is no such device or function, or the function has an RDMA device.
    ///
    /// If the device is eRDMA's, the function gets the place of those that can have made it, where that is the same for all:
    /// these reach the memory of GPUs.
    pub fn pair(&mut self, rdma: &str, address: &DeviceAddress) {
        let place = self.unpaired.iter().position(|it| it.name == rdma);
        let made_by = match place.is_some_and(|place| self.unpaired[place].is_erdma) {
            true => pairing::makers(self.functions.iter().map(|it| &it.device)),
            false => vec![],
        };
        let numa_node = common(self, &made_by, |it| it.device.numa_node);
        let path = common(self, &made_by, |it| Some(it.path.clone()));
        let mut functions = self.functions.iter_mut();
        let function = functions.find(|it| it.device.address == *address && it.hcas.is_empty());
        let (Some(place), Some(function)) = (place, function) else {
            return;
        };
        let hca = self.unpaired.remove(place);
        let device = &mut function.device;
        device.rdma.push(hca.name.clone());
        device.rdma_functions = made_by;
        device.numa_node = numa_node.or(device.numa_node);
        function.path = path.unwrap_or_else(|| function.path.clone());
        function.hcas.push(hca);
    }
}

/// Returns the common value of `of` for all functions at `addresses`.
fn common<T: PartialEq>(
    inventory: &Inventory,
    addresses: &[DeviceAddress],
    of: impl Fn(&Function) -> Option<T>,
) -> Option<T> {
    let functions = addresses.iter().filter_map(|it| inventory.function(it));
    let mut values = functions.map(of);
    let first = values.next()??;
    values
        .all(|it| it.as_ref() == Some(&first))
        .then_some(first)
}
