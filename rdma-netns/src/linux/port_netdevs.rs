// SPDX-License-Identifier: Apache-2.0
//! RDMA devices whose netdev is not on their own function: software RDMA devices, and eRDMA devices.

use super::{
    Linux,
    devices::{self, read},
    nldev::{DeviceInfo, Nldev},
};
use crate::{DeviceAddress, Function, Netdev, pairing::ERDMA};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Mutex, PoisonError},
};

/// State of an RDMA device that has no parent in sysfs, or whose parent has eRDMA's driver, as RDMA netlink reports it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortNetdev {
    /// Driver id.
    pub(super) driver: Option<u32>,
    /// Index of the port's netdev. `None`: no netdev of this program's namespace is the port's, or the port was never
    /// queried. The kernel compares the namespaces (`fill_port_info()`, `drivers/infiniband/core/nldev.c`). The netdev's
    /// names in sysfs, rxe's `parent` and the entries of the GID table, can be names of another namespace.
    pub(super) netdev: Option<u32>,
}

/// Index of the netdev of each RDMA device's port, at the last query of the ports. The key is the RDMA device's index
/// and node GUID: after ib_core is loaded again, another RDMA device can have the index.
#[derive(Debug, Default)]
pub(super) struct PortNetdevs(Mutex<BTreeMap<(u32, String), Option<u32>>>);

impl PortNetdevs {
    /// Returns the netdevs of the ports of `devices`. Queries them if there is a `query`, otherwise returns the netdevs
    /// of the last query.
    fn of(
        &self,
        devices: &[DeviceInfo],
        query: Option<impl FnMut(&DeviceInfo) -> Option<u32>>,
    ) -> Vec<Option<u32>> {
        let key = |device: &DeviceInfo| (device.index, device.node_guid.clone());
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(query) = query else {
            let known = known();
            let netdev = |device| known.get(&key(device)).copied().flatten();
            return devices.iter().map(netdev).collect();
        };
        // without the lock, because firmware may not answer
        let netdevs: Vec<Option<u32>> = devices.iter().map(query).collect();
        *known() = devices.iter().map(key).zip(netdevs.clone()).collect();
        netdevs
    }
}

impl Linux {
    /// Returns the RDMA devices that have no parent in sysfs, or whose parent has eRDMA's driver, by name. Omits devices
    /// that are not in this program's namespace. Queries ports only if `with_ports` is true: rxe and siw read the speed of
    /// their netdev for the answer about a port, which can need the firmware of the netdev's NIC (`ib_get_eth_speed()`,
    /// `drivers/infiniband/core/verbs.c`).
    pub(super) fn port_netdevs(&self, with_ports: bool) -> BTreeMap<String, PortNetdev> {
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
        let query = with_ports.then_some(|device: &DeviceInfo| port_netdev(&mut nldev, device));
        let netdevs = self.port_netdevs.of(&devices, query);
        let found = devices.into_iter().zip(netdevs).map(|(device, netdev)| {
            let verbs = nldev.char_device("uverbs", device.index, None);
            let driver = verbs.ok().flatten().and_then(|it| it.driver);
            (device.name, PortNetdev { driver, netdev })
        });
        found.collect()
    }
}

/// Queries the ports of an RDMA device. Returns the index of the first port's netdev.
fn port_netdev(nldev: &mut Nldev, device: &DeviceInfo) -> Option<u32> {
    let ports = nldev.ports(device.index).unwrap_or_else(|error| {
        log::debug!("cannot read the ports of {}: {error}", device.name);
        Vec::new()
    });
    ports.first()?.netdev
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

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u32, guid: &str) -> DeviceInfo {
        DeviceInfo {
            index,
            name: format!("rxe{index}"),
            node_guid: guid.to_owned(),
            parent: None,
            is_iwarp: false,
        }
    }

    #[test]
    fn without_ports_no_port_is_queried() {
        let known = PortNetdevs::default();
        let devices = [device(0, "a"), device(1, "b")];
        let no_query = None::<fn(&DeviceInfo) -> Option<u32>>;
        assert_eq!(known.of(&devices, no_query), [None, None]);
        let query = |device: &DeviceInfo| (device.index == 1).then_some(7);
        assert_eq!(known.of(&devices, Some(query)), [None, Some(7)]);
        // an RDMA device that another one replaced, and an RDMA device that is new
        let others = [device(1, "c"), device(1, "b"), device(2, "b")];
        assert_eq!(known.of(&others, no_query), [None, Some(7), None]);
        // the netdev has moved to a pod
        known.of(&devices, Some(|_: &DeviceInfo| None));
        assert_eq!(known.of(&devices, no_query), [None, None]);
    }
}
