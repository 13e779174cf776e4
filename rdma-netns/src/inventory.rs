// SPDX-License-Identifier: Apache-2.0
//! RDMA hardware of a node in all namespaces, mostly from sysfs and `/dev`
//! ([`Linux::inventory`](crate::Linux::inventory)).

use crate::{
    CharDevice, Device, DeviceAddress, GpuDirect, HardwareAddress, LinkType, RdmaCgroup, RdmaMode,
    pairing,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
};

/// A node's RDMA hardware.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Inventory {
    /// PCI functions and auxiliary devices that have, or can have, a netdev or an RDMA device,
    /// by address.
    pub functions: Vec<Function>,
    /// RDMA devices that have no parent in sysfs, and whose netdev this program does not see, for example because a pod
    /// has the netdev ([`Self::pair`]). The list includes software RDMA devices of other namespaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unpaired: Vec<Hca>,
    /// Namespace mode of the RDMA subsystem (ib_core's parameter `netns_mode`), if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdma_mode: Option<RdmaMode>,
    /// GPUs and other accelerators, by address.
    pub accelerators: Vec<Accelerator>,
    /// Number of the CPU socket of each NUMA node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sockets: BTreeMap<u32, u32>,
    /// Character device `/dev/infiniband/rdma_cm`. `None`: the module rdma_ucm is not loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_manager: Option<CharDevice>,
    /// The module of the eRDMA driver. `None`: the module is not loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub erdma: Option<ErdmaModule>,
    /// State of the rdma cgroup controller. `Usable` if this program has not read the state.
    pub rdma_cgroup: RdmaCgroup,
    /// State that determines whether GPUDirect works. `None`: the node has no accelerators, or this program did not
    /// read the state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpudirect: Option<GpuDirect>,
}

/// The kernel module `erdma`, which drives all eRDMA NICs of the node in one mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErdmaModule {
    /// Value of the parameter `compat_mode`. `None`: the module has no such parameter (mainline Linux).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compat: Option<bool>,
    /// True if the node's RDMA stack is MLNX_OFED: its module `mlx_compat` is loaded.
    #[serde(default)]
    pub ofed: bool,
}

/// A PCI function or auxiliary device, with its netdevs and RDMA devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// The device.
    #[serde(flatten)]
    pub device: Device,
    /// Index of a virtual function in its physical function, from 0, or number of a sub-function. Other devices have
    /// `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// PCI path of the function. An auxiliary device has the path of its PCI function.
    #[serde(default)]
    pub path: PciPath,
    /// Netdevs of the function in this program's namespace. If the function has no netdevs, the netdevs of its RDMA
    /// device ([`pairing`]).
    #[serde(default)]
    pub netdevs: Vec<Netdev>,
    /// The function of [`Self::netdevs`] if the netdevs belong to another function, as with eRDMA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev_function: Option<DeviceAddress>,
    /// PCI path of the NIC's second function, if it has one (ConnectX-8's Data Direct). The second function is below a
    /// GPU's switch and reaches the GPU's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_direct: Option<PciPath>,
    /// RDMA devices of the function, in all namespaces.
    #[serde(default)]
    pub hcas: Vec<Hca>,
}

/// PCI path from the root to a function, without the function itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PciPath {
    /// Host bridge, such as `pci0000:3a`. Empty: the host bridge is unknown.
    pub host_bridge: String,
    /// Ports above the function: the root port first, then the ports of switches.
    pub bridges: Vec<DeviceAddress>,
}

/// End of [`Netdev::taken_by`] for a netdev that accelerates its master. The master's name precedes it.
pub(crate) const ACCELERATED: &str = ", which it accelerates";

/// A netdev, with the properties that resources need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Netdev {
    /// Name.
    pub name: String,
    /// Present hardware address.
    pub mac: HardwareAddress,
    /// Link type.
    #[serde(default)]
    pub link_type: LinkType,
    /// True if the netdev has carrier.
    #[serde(default)]
    pub carrier: bool,
    /// MTU in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Speed in Mbit/s. `None`: the netdev has no carrier, its driver reports no speed, or ports were not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<u32>,
    /// Master of the netdev, such as a bond or a bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<String>,
    /// Master that receives all frames of the netdev: `the bridge br0`, `Open vSwitch`, `hv0, which it accelerates`
    /// (Azure). A bond is not listed as such a master, because the bond and its ports share an RDMA device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_by: Option<String>,
    /// VLANs in this program's namespace on the netdev, by name. For a bond's port, the VLANs on the bond.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vlans: Vec<Vlan>,
    /// Network of [`Self::ipv6`], such as `fd00:1::/64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6_prefix: Option<String>,
    /// First IPv6 address that is not link-local. If the netdev has none, its master's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Addr>,
    /// First IPv4 address that is not link-local. If the netdev has none, its master's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Addr>,
    /// True if the default route, or a route to an API server, uses the netdev or an upper netdev. A move of the netdev
    /// would then cut off the node ([`uplink`](crate::uplink)).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default_route: bool,
    /// A netdev of this program's namespace that lies on the netdev: `the vlan ens1f0.100`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<String>,
}

/// A VLAN, with the properties by which resources select it. A VLAN has the carrier of its lower netdev
/// (`vlan_stacked_transfer_operstate()`, `net/8021q/vlan.c`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vlan {
    /// Name.
    pub name: String,
    /// True if an administrator has set the VLAN up.
    pub up: bool,
}

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hca {
    /// Name.
    pub name: String,
    /// Ports, from 1. Empty: the RDMA device is in a namespace whose sysfs this program does not see, or ports were not
    /// observed.
    #[serde(default)]
    pub ports: Vec<HcaPort>,
    /// Character devices `uverbs0`, `umad0` and `issm0`, and the character devices of the sub-devices.
    #[serde(default)]
    pub char_devices: Vec<CharDevice>,
    /// Names of further RDMA devices of the function that serve subnet management only (`RDMA_DEVICE_TYPE_SMI`): `smi1`
    /// of a multi-plane NIC has one port for each plane. Sub-devices have `umad` devices and no `uverbs` device
    /// (`ib_uverbs_add_one()`, `drivers/infiniband/core/uverbs_main.c`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sub_devices: Vec<String>,
    /// Firmware version. `None`: the device has no firmware, is in another namespace, or ports were not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// True for a software RDMA device (rxe or siw) on a NIC. False if the NIC's netdevs have a master: the software
    /// RDMA device then belongs to the bond.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub soft: bool,
    /// Node GUID, such as `0216:3eff:fe0a:0b01`, if the device has no parent in sysfs. `None`: the device has a parent,
    /// or is in a namespace whose sysfs this program does not see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_guid: Option<String>,
    /// True if the device has no parent in sysfs, and its driver is eRDMA's ([`pairing::is_erdma`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_erdma: bool,
    /// Kernel modules that use the device, like [`RdmaDevice::kernel_users`](crate::RdmaDevice::kernel_users).
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
    /// Number of entries of the GID table, used and free (`ib_port_immutable::gid_tbl_len`). 0: unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gids: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A GPU or another accelerator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accelerator {
    /// The function.
    pub address: DeviceAddress,
    /// PCI vendor id, such as `10de`.
    pub vendor: String,
    /// NUMA node. `None`: the firmware reports no NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// PCI path.
    #[serde(default)]
    pub path: PciPath,
}

impl Netdev {
    /// Returns the name of the netdev whose addresses become the RDMA device's GIDs: the bond if this netdev is a
    /// bond's port, else this netdev.
    pub fn base(&self) -> &str {
        let bond = self.master.as_deref().filter(|_| self.taken_by.is_none());
        bond.unwrap_or(&self.name)
    }

    /// Returns true if the netdev accelerates its master. The master is the netdev of a paravirtual NIC.
    pub fn accelerates(&self) -> bool {
        let taken_by = self.taken_by.as_deref();
        taken_by.is_some_and(|it| it.ends_with(ACCELERATED))
    }
}

impl Inventory {
    /// Returns the function at `address`.
    pub fn function(&self, address: &DeviceAddress) -> Option<&Function> {
        self.functions
            .iter()
            .find(|function| function.device.address == *address)
    }

    /// Returns the functions of a NIC: `function`, which has the RDMA device, the function of the netdev, and functions
    /// that may have made the RDMA device.
    pub fn functions_of<'a>(&'a self, function: &'a Function) -> impl Iterator<Item = &'a Device> {
        let made_by = &function.device.rdma_functions;
        let others = function.netdev_function.iter().chain(made_by);
        let others = others.filter_map(|address| Some(&self.function(address)?.device));
        std::iter::once(&function.device).chain(others)
    }

    /// Returns the device that made the RDMA device of `function`. If several devices may have made the RDMA device,
    /// returns one of them: all of them have the same driver and PCI id.
    pub fn maker<'a>(&'a self, function: &'a Function) -> &'a Device {
        let made_by = function.device.rdma_functions.first();
        let made_by = made_by.and_then(|address| self.function(address));
        &made_by.unwrap_or(function).device
    }

    /// Pairs the unpaired RDMA device `rdma` with the function at `address`, which has the netdev of `rdma`. Does
    /// nothing if the RDMA device or the function does not exist, or if the function already has an RDMA device.
    ///
    /// An eRDMA function gets the PCI path and the NUMA node of the functions that may have made the RDMA device, if
    /// these functions have the same values. The path shows which GPUs' memory the functions reach.
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

/// Returns the value that `of` returns for all functions at `addresses`. Returns `None` if the values differ, or if a
/// value is missing.
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
