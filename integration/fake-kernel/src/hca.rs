// SPDX-License-Identifier: Apache-2.0
//! An RDMA device and a sub-device of a world.

use crate::gid_table::Table;
use rdma_netns::{DeviceAddress, Guid, NetnsId, Pkey};

/// An RDMA device.
#[derive(Clone, Debug)]
pub(crate) struct Hca {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) guid: String,
    /// The port GUID, if the port is InfiniBand.
    pub(crate) port_guid: Guid,
    pub(crate) parent: Option<DeviceAddress>,
    /// True if sysfs shows no parent of the device, because its driver sets none.
    pub(crate) parentless: bool,
    /// Namespace of the device. In shared mode it is the host's, and all namespaces see the device.
    pub(crate) netns: NetnsId,
    /// The netdev of the port, by [`crate::netdev::Netdev::id`].
    pub(crate) netdev: Option<u64>,
    /// True if the driver has `disassociate_ucontext`, so that the device can be moved.
    pub(crate) movable: bool,
    pub(crate) infiniband: bool,
    /// True if the port has an IPoIB netdev, which the kernel makes and removes together with the RDMA device.
    pub(crate) ipoib: bool,
    pub(crate) partitions: Vec<Pkey>,
    /// Number of the character device `uverbsN`.
    pub(crate) uverbs: u32,
    pub(crate) umad: Option<u32>,
    /// Number of observations until udev has made the nodes of the character devices.
    pub(crate) udev: u32,
    pub(crate) gids: Table,
}

/// A sub-device, with one port.
#[derive(Clone, Debug)]
pub(crate) struct SubHca {
    pub(crate) name: String,
    /// Index of its parent RDMA device.
    pub(crate) of: u32,
    pub(crate) umad: u32,
}
