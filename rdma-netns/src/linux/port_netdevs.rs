// SPDX-License-Identifier: Apache-2.0
//! RDMA devices whose netdev is not on their own function: software RDMA devices, and eRDMA devices.

use super::{
    Linux,
    devices::{self, read},
    nldev::PortInfo,
};
use crate::{DeviceAddress, Function, Netdev, pairing::ERDMA};
use std::{collections::BTreeMap, path::Path};

/// State of an RDMA device that has no parent in sysfs, or whose parent has eRDMA's driver, as RDMA netlink reports it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortNetdev {
    /// Driver id.
    pub(super) driver: Option<u32>,
    /// Index of the port's netdev. `None`: no netdev of this program's namespace is the port's. The kernel compares the
    /// namespaces (`fill_port_info()`, `drivers/infiniband/core/nldev.c`). The netdev's names in sysfs, rxe's `parent`
    /// and the entries of the GID table, can be names of another namespace.
    pub(super) netdev: Option<u32>,
}

impl Linux {
    /// Returns the RDMA devices that have no parent in sysfs, or whose parent has eRDMA's driver, by name. Omits devices
    /// that are not in this program's namespace. rxe and siw read the speed of their netdev for the answer about a port,
    /// which can need the firmware of the netdev's NIC (`ib_get_eth_speed()`, `drivers/infiniband/core/verbs.c`).
    pub(super) fn port_netdevs(&self) -> BTreeMap<String, PortNetdev> {
        let mut verbs = devices::verbs(&self.sysfs).unwrap_or_default();
        let erdma = self.sysfs.join("bus/pci/drivers").join(ERDMA);
        let is_bound = |function: &DeviceAddress| erdma.join(&**function).exists();
        verbs.retain(|it| it.parent.as_ref().is_none_or(is_bound));
        if verbs.is_empty() {
            return BTreeMap::new();
        }
        let Some((mut nldev, mut devices)) = self.own_rdma() else {
            return BTreeMap::new();
        };
        devices.retain(|device| verbs.iter().any(|it| it.device == device.name));
        let found = devices.into_iter().map(|device| {
            let verbs = nldev.char_device("uverbs", device.index, None);
            let ports = nldev.ports(device.index).unwrap_or_else(|error| {
                log::debug!("cannot read the ports of {}: {error}", device.name);
                Vec::new()
            });
            let state = PortNetdev {
                driver: verbs.ok().flatten().and_then(|it| it.driver),
                netdev: ports.first().and_then(|it: &PortInfo| it.netdev),
            };
            (device.name, state)
        });
        found.collect()
    }
}

/// Returns the place in `functions` of the function that has the netdev with `index`. If the netdev is a bond, returns
/// the place of the function of the bond's first port.
pub(super) fn place_of(sysfs: &Path, index: u32, functions: &[Function]) -> Option<usize> {
    let class = sysfs.join("class/net");
    let index = index.to_string();
    let has_index = |name: &str| read(&class.join(name), "ifindex").is_some_and(|it| it == index);
    let of = |is: &dyn Fn(&Netdev) -> bool| {
        let netdevs = functions.iter().enumerate().flat_map(|(place, function)| {
            function.netdevs.iter().map(move |netdev| (netdev, place))
        });
        let fitting = netdevs.filter(|(netdev, _)| is(netdev));
        fitting
            .min_by(|a, b| a.0.name.cmp(&b.0.name))
            .map(|(_, place)| place)
    };
    of(&|it| has_index(&it.name)).or_else(|| of(&|it| it.master.as_deref().is_some_and(has_index)))
}
