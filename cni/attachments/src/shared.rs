// SPDX-License-Identifier: Apache-2.0
//! A netdev of the host that several pods share.

use rdma_netns::{Child, DeviceAddress, InterfaceName, Link};
use serde::{Deserialize, Serialize};

/// A netdev that stays on the host, and its child netdev that the pod gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shared {
    /// The netdev's name on the host.
    pub parent: InterfaceName,
    /// The netdev's index on the host.
    pub parent_index: u32,
    /// The netdev's MTU in bytes, which limits the child's MTU.
    pub parent_mtu: u32,
    /// The netdev's PCI function or auxiliary device. A bond has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceAddress>,
    /// The kind of the pod's child netdev.
    pub child: Child,
    /// Name of an IPoIB child on the host, where `rdma-cni` makes it. The name is also the child's alias, by which
    /// `rdma-cni` finds a child that the kernel returned to the host under another name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_as: Option<InterfaceName>,
}

impl Shared {
    /// Returns the description of `parent` and of its future `child`.
    pub fn of(parent: &Link, child: Child) -> Self {
        Self {
            parent: parent.name.clone(),
            parent_index: parent.index,
            parent_mtu: parent.mtu,
            device: parent.parent.clone(),
            child,
            made_as: None,
        }
    }

    /// Returns true if `link`, a netdev of the host, is the parent. An equal index is not enough, because another
    /// netdev can get the index of a deleted parent.
    pub fn is_of(&self, link: &Link) -> bool {
        let same = link.parent == self.device;
        link.index == self.parent_index
            && same
            && (self.device.is_some() || link.name == self.parent)
    }
}
