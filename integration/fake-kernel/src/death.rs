// SPDX-License-Identifier: Apache-2.0
//! The end of a namespace, the removal of a device, and a reboot.

use crate::world::{HOST, World};
use rdma_netns::{InterfaceName, NetnsId};

impl World {
    /// Ends the namespace if no path and no open descriptor leads to it.
    pub(crate) fn end_if_unused(&mut self, id: NetnsId) {
        let has_path = self.paths.values().any(|other| *other == Some(id));
        let unused = |n: &crate::world::Netns| n.id == id && n.descriptors == 0;
        if id != HOST && !has_path && self.namespaces.iter().any(unused) {
            self.end(id);
        }
    }

    /// Ends a namespace, like `cleanup_net()`: ib_core's `rdma_dev_exit_net()` first returns RDMA devices to the host,
    /// then `default_device_exit_batch()` (`net/core/dev.c`) returns physical netdevs, down. A netdev keeps its name,
    /// or is called `dev<index>` if the host has that name. Virtual netdevs are destroyed; IPoIB children return on
    /// some kernels.
    fn end(&mut self, id: NetnsId) {
        for position in 0..self.hcas.len() {
            // an RDMA device with a sub-device stays in the ended namespace until the sub-device is deleted
            if self.hcas[position].netns == id && !self.has_sub_devices(self.hcas[position].index) {
                self.relocate_rdma(position, HOST);
            }
        }
        let returns = self.returns_ipoib_children;
        self.netdevs.retain(|netdev| {
            let comes_back = netdev.is_physical() || returns && netdev.is_ipoib_child();
            netdev.netns != id || comes_back && netdev.link.index != 1
        });
        self.reap();
        for position in 0..self.netdevs.len() {
            if self.netdevs[position].netns == id {
                self.refund(position);
            }
        }
        self.namespaces.retain(|netns| netns.id != id);
        self.refresh_gids();
    }

    /// Returns a netdev to the host. Alternative names that are taken on the host are dropped
    /// (`default_device_exit_net()`).
    fn refund(&mut self, position: usize) {
        let link = self.netdevs[position].link.clone();
        let mut name = link.name.clone();
        if self.name_in_use(HOST, &name) {
            let fallback = InterfaceName::try_from(format!("dev{}", link.index));
            name = fallback
                .ok()
                .filter(|name| !self.name_in_use(HOST, name))
                .unwrap_or_else(|| self.numbered(HOST, "dev"));
        }
        let mut alt_names = link.alt_names;
        alt_names.retain(|alt| !self.name_in_use(HOST, alt));
        self.netdevs[position].link.alt_names = alt_names;
        self.relocate(position, HOST, name);
    }

    /// Removes the function at `address`, with its netdevs and RDMA devices in all namespaces, as after a write to
    /// `sriov_numvfs` or an unplug.
    pub fn unplug(&mut self, address: &str) {
        self.functions
            .retain(|function| &*function.address != address);
        self.vfs.retain(|function, _| **function != *address);
        self.inodes.retain(|function, _| **function != *address);
        self.nics.retain(|function, _| **function != *address);
        self.lose_devices_of(address);
    }

    pub(crate) fn lose_devices_of(&mut self, address: &str) {
        let is_its = |parent: Option<&rdma_netns::DeviceAddress>| {
            parent.is_some_and(|parent| **parent == *address)
        };
        self.netdevs
            .retain(|netdev| !is_its(netdev.link.parent.as_ref()));
        self.hcas.retain(|hca| !is_its(hca.parent.as_ref()));
        self.reap();
        self.refresh_gids();
    }

    /// Makes the present state the node's state after every boot.
    pub fn switch_on(&mut self) {
        self.switched_on = None;
        self.switched_on = Some(Box::new(self.clone()));
    }

    /// Restores the state of [`Self::switch_on`], with a new boot id. Namespaces can get the ids of the previous boot
    /// again.
    pub fn reboot(&mut self) {
        let Some(image) = self.switched_on.take() else {
            return;
        };
        let boot = self.boot + 1;
        *self = *image.clone();
        self.boot = boot;
        self.switched_on = Some(image);
    }
}
