// SPDX-License-Identifier: Apache-2.0
//! RDMA devices, as the RDMA subsystem shows them in one namespace.

pub mod name;

use crate::{DeviceAddress, Link, LinkType, pairing};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Namespace mode of the RDMA subsystem, which applies to the whole node (`RDMA_NLDEV_SYS_ATTR_NETNS_MODE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RdmaMode {
    /// Every namespace sees every RDMA device. No RDMA device can be moved.
    Shared,
    /// Only one namespace sees an RDMA device. RDMA devices can be moved.
    Exclusive,
}

impl fmt::Display for RdmaMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaDevice {
    /// Name, in the form of [`name::text`]. A program can change the name. It is unique on the node (Linux 6.12).
    pub name: String,
    /// Index that the device keeps for its lifetime, over renames and moves (`RDMA_NLDEV_ATTR_DEV_INDEX`).
    pub index: u32,
    /// Node GUID, in the form `0000:1122:3344:5566`.
    pub node_guid: String,
    /// PCI function or auxiliary device of the RDMA device. If sysfs reports none, the function of the device's netdev
    /// ([`pairing`]). Software devices may have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceAddress>,
    /// Ports, from 1.
    #[serde(default)]
    pub ports: Vec<RdmaPort>,
    /// Character devices that the observing namespace sees, including those of sub-devices in the same namespace.
    #[serde(default)]
    pub char_devices: Vec<CharDevice>,
    /// Kernel modules that have connections through the device, or listen on one of its addresses: `nvme_rdma`,
    /// `rpcrdma` (NFS), `ko2iblnd` (Lustre). Only observed for devices on the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_users: Vec<String>,
}

/// An RDMA device that is a part of another RDMA device, for subnet management only: `smi1` of a multi-plane NIC
/// (`RDMA_DEVICE_TYPE_SMI`). A sub-device has `umad` devices and no `uverbs` device (`ib_uverbs_add_one()`,
/// `drivers/infiniband/core/uverbs_main.c`). It has a reference to its parent (`ib_add_sub_device()`). A move of the
/// parent waits until such references are released (`disable_device()`, `drivers/infiniband/core/device.c`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubDevice {
    /// Name, in the form of [`name::text`].
    pub name: String,
    /// Name of the parent RDMA device, which can be in another namespace.
    pub parent: String,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaPort {
    /// Number, from 1.
    pub number: u32,
    /// Index of the port's netdev, if the netdev is in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev: Option<u32>,
    /// Logical state (`enum ib_port_state`): 1 down, 4 active.
    pub state: u8,
    /// Link layer of a port without a netdev, from this program's sysfs. RDMA over an Ethernet port needs the port's
    /// netdev, RDMA over an InfiniBand port does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_layer: Option<LinkType>,
}

/// A character device under `/dev/infiniband`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CharDevice {
    /// Name, such as `uverbs0` or `umad0`.
    pub name: String,
    /// Major number that the kernel gave the device.
    pub major: u32,
    /// Minor number that the kernel gave the device.
    pub minor: u32,
    /// Major and minor number of the device file in `/dev/infiniband`, if the file exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<(u32, u32)>,
}

impl CharDevice {
    /// Returns true if the device file `/dev/infiniband/<name>` has the major and minor number of this device.
    pub fn is_in_place(&self) -> bool {
        self.node == Some((self.major, self.minor))
    }
}

impl RdmaDevice {
    /// Returns true if the netdev `index` is the netdev of one of the device's ports.
    pub fn has_netdev(&self, index: u32) -> bool {
        self.ports.iter().any(|port| port.netdev == Some(index))
    }

    /// Returns true if the device has an Ethernet port (RoCE, iWARP) without a netdev in its namespace. Such a port
    /// gets no GIDs from IP addresses.
    pub fn lacks_netdev(&self) -> bool {
        let lacks =
            |port: &RdmaPort| port.netdev.is_none() && port.link_layer == Some(LinkType::Ether);
        self.ports.iter().any(lacks)
    }

    /// Returns true if the node GUID derives from the hardware address of `link`. Returns false if `link` has no
    /// hardware.
    pub(crate) fn has_guid_of(&self, link: &Link) -> bool {
        let macs = || std::iter::once(&link.mac).chain(&link.permanent_mac);
        link.parent.is_some() && macs().any(|mac| pairing::is_guid_of(&self.node_guid, mac))
    }
}
