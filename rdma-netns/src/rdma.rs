// SPDX-License-Identifier: Apache-2.0
//! RDMA devices as the RDMA subsystem shows them in one namespace.

pub mod name;

use crate::{DeviceAddress, Link, LinkType, pairing};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Namespace mode of the RDMA subsystem, system-wide (`RDMA_NLDEV_SYS_ATTR_NETNS_MODE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RdmaMode {
    /// Every namespace sees every RDMA device; none can be moved.
    Shared,
    /// An RDMA device is seen in one namespace only, and can be moved.
    Exclusive,
}

impl fmt::Display for RdmaMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shared => "shared",
            Self::Exclusive => "exclusive",
        })
    }
}

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaDevice {
    /// Name, as [`name::text`]; can be changed, and is unique on the node as of Linux 6.12.
    pub name: String,
    /// Number that the device keeps for life, over renames and moves
    /// (`RDMA_NLDEV_ATTR_DEV_INDEX`).
    pub index: u32,
    /// Node GUID, `0000:1122:3344:5566`-like.
    pub node_guid: String,
    /// The PCI function or auxiliary device behind it; that of its netdev where sysfs tells none of hardware
    /// ([`pairing`]). Soft devices may have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceAddress>,
    /// Its ports, from 1.
    #[serde(default)]
    pub ports: Vec<RdmaPort>,
    /// Its character devices, and those of its sub-devices in the same namespace, where they are known to the asking
    /// namespace.
    #[serde(default)]
    pub char_devices: Vec<CharDevice>,
    /// Kernel modules that have connections by it, or listen at an address of it: `nvme_rdma`,
    /// `rpcrdma` (NFS), `ko2iblnd` (Lustre). Known in the host's namespace only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_users: Vec<String>,
}

/// An RDMA device that gives a part of another one: `smi1` of a multi-plane NIC, for subnet management alone
/// (`RDMA_DEVICE_TYPE_SMI`). It has `umad` devices and no `uverbs` device (`ib_uverbs_add_one()`,
/// `drivers/infiniband/core/uverbs_main.c`). It holds a reference to the other one (`ib_add_sub_device()`), and a move
/// of that waits until there is none (`disable_device()`, `drivers/infiniband/core/device.c`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubDevice {
    /// Name, as [`name::text`].
    pub name: String,
    /// The name of the RDMA device that it is a part of, which can be in another namespace.
    pub parent: String,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaPort {
    /// Number, from 1.
    pub number: u32,
    /// Index of the port's netdev, where that is in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev: Option<u32>,
    /// Logical state (`enum ib_port_state`): 1 down, 4 active.
    pub state: u8,
    /// The link layer of a port without netdev, as this program's sysfs tells it: Ethernet's is no
    /// use without, InfiniBand's is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_layer: Option<LinkType>,
}

/// A character device under `/dev/infiniband`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CharDevice {
    /// `uverbs0`, `umad0`.
    pub name: String,
    /// The device number that the kernel gave it.
    pub major: u32,
    /// The device number that the kernel gave it.
    pub minor: u32,
    /// The numbers that the node in `/dev/infiniband` has, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<(u32, u32)>,
}

impl CharDevice {
    /// Returns true if `/dev/infiniband/<name>` is this device.
    pub fn is_in_place(&self) -> bool {
        self.node == Some((self.major, self.minor))
    }
}

impl RdmaDevice {
    /// Returns true if one of its ports has the netdev `index`.
    pub fn has_netdev(&self, index: u32) -> bool {
        self.ports.iter().any(|port| port.netdev == Some(index))
    }

    /// Returns true if it has an Ethernet port (RoCE, iWARP) without a netdev in its namespace: no address becomes a
    /// GID there.
    pub fn lacks_netdev(&self) -> bool {
        let lacks =
            |port: &RdmaPort| port.netdev.is_none() && port.link_layer == Some(LinkType::Ether);
        self.ports.iter().any(lacks)
    }

    /// Returns true if the node GUID derives from the hardware address of `link`, which has hardware.
    pub(crate) fn has_guid_of(&self, link: &Link) -> bool {
        let macs = || std::iter::once(&link.mac).chain(&link.permanent_mac);
        link.parent.is_some() && macs().any(|mac| pairing::is_guid_of(&self.node_guid, mac))
    }
}
