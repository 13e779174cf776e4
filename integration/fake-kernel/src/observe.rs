// SPDX-License-Identifier: Apache-2.0
//! The observed state of a world, and the passing of time.

use crate::{
    netdev::Netdev,
    world::{HOST, World},
};
use rdma_netns::{
    Address, Device, Link, Namespace, NetnsId, Observed, Origin, link::IFA_F_OPTIMISTIC,
    pairing::ERDMA_ID,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

impl World {
    /// Returns the boot id, which changes at every boot.
    pub fn boot_id(&self) -> String {
        format!("00000000-0000-4000-8000-{:012}", self.boot)
    }

    /// Returns the state of the host and of the pod's namespace.
    pub fn observe(&self, pod: Option<NetnsId>) -> Observed {
        let parentless = self.hcas.iter().filter(|hca| hca.parentless);
        let parentless: BTreeSet<String> = parentless.map(|hca| hca.name.clone()).collect();
        let mut observed = Observed {
            vfs: BTreeMap::new(),
            unpaired: parentless.iter().cloned().collect(),
            boot_id: self.boot_id(),
            at: Some(self.clock),
            rdma_mode: self.rdma_mode,
            devices: self.devices(),
            inodes: self.inodes.clone(),
            api_servers: Vec::new(),
            device_settings: vec![],
            host: self.namespace(HOST),
            pod: pod.map(|pod| self.namespace(pod)),
        };
        observed.host.other_number = pod.and_then(|pod| self.number(pod));
        let drivers = parentless.into_iter().map(|name| (name, ERDMA_ID));
        observed.pair(&drivers.collect());
        observed
    }

    pub(crate) fn namespace(&self, id: NetnsId) -> Namespace {
        let mut links: Vec<Link> = self.links(id).into_iter().cloned().collect();
        for link in &mut links {
            link.origin = self.origin(id, link);
        }
        let routes = links.iter().flat_map(|link| &link.routes);
        let rules = self.rules(id).iter().map(|rule| rule.table);
        Namespace {
            id,
            tables: routes.map(|it| it.table).chain(rules).collect(),
            links,
            unkept_routes: Vec::new(),
            rdma: self.rdma_in(id),
            sub_devices: self.sub_devices_in(id),
            rules: self.rules(id).to_vec(),
            general_rules: Vec::new(),
            other_number: self.number(HOST).filter(|_| id != HOST),
        }
    }

    /// Returns the lower netdev of the netdev `link` in the namespace `id`. The kernel reports none for IPoIB.
    fn origin(&self, id: NetnsId, link: &Link) -> Option<Origin> {
        let is_it = |it: &&Netdev| it.netns == id && it.link.index == link.index;
        let below = self.netdevs.iter().find(is_it)?.below?;
        let lower = self.netdevs.iter().find(|it| it.id == below)?;
        let is_near = lower.netns == id;
        let number = self.number(lower.netns)?;
        link.ipoib.is_none().then_some(Origin {
            index: lower.link.index,
            netns: if is_near { -1 } else { number },
            vlan: 0,
        })
    }

    /// Returns the number that the namespace `id` has in all other namespaces.
    fn number(&self, id: NetnsId) -> Option<i32> {
        let position = self.namespaces.iter().position(|it| it.id == id)?;
        i32::try_from(position).ok()
    }

    /// Returns the functions as in sysfs, whose class `infiniband_verbs` has the RDMA devices of all namespaces.
    pub(crate) fn devices(&self) -> Vec<Device> {
        let functions = self.functions.iter().map(|function| {
            let own = self.hcas.iter();
            let own =
                own.filter(|hca| hca.parent.as_ref() == Some(&function.address) && !hca.parentless);
            let mut rdma: Vec<String> = own.map(|hca| hca.name.clone()).collect();
            rdma.sort();
            let address = Some(&function.address);
            let mut netdevs = self.netdevs.iter();
            Device {
                rdma,
                has_netdev: netdevs.any(|it| it.link.parent.as_ref() == address),
                rdma_functions: Vec::new(),
                manages_nvlink: false,
                ..function.clone()
            }
        });
        functions.collect()
    }

    /// Lets `seconds` pass: lifetimes become shorter, and expired addresses and routes are removed (`check_lifetime()`,
    /// `net/ipv4/devinet.c`; `addrconf_verify_rtnl()`, `net/ipv6/addrconf.c`).
    pub fn pass_seconds(&mut self, seconds: u64) {
        self.clock += seconds;
        for position in 0..self.netdevs.len() {
            let Netdev { netns, link, .. } = &mut self.netdevs[position];
            let aged = link.aged(seconds);
            let (netns, name) = (*netns, link.name.clone());
            let is_left = |it: &&Address| aged.address(it).is_none();
            let ended: Vec<Address> = link.addresses.iter().filter(is_left).cloned().collect();
            for address in &mut link.addresses {
                let lifetime = aged.address(address).and_then(|it| it.lifetime);
                address.lifetime = lifetime;
            }
            link.routes = aged.routes;
            for address in ended {
                // a secondary may already be gone with its primary
                let _ = self.remove_address(netns, &name, &address);
            }
        }
    }

    pub(crate) fn passed(&self) -> Duration {
        Duration::from_secs(self.clock)
    }

    /// Lets one observation pass: duplicate address detections and udev come closer to their ends.
    pub fn pass_time(&mut self) {
        for netdev in &mut self.netdevs {
            if !netdev.link.carrier {
                continue;
            }
            for left in netdev.detecting.values_mut() {
                *left = left.saturating_sub(1);
            }
            let addresses = &mut netdev.link.addresses;
            for (ip, _) in netdev.detecting.iter().filter(|(_, left)| **left == 0) {
                // addrconf_dad_stop(), addrconf_dad_work(): an address that failed stays tentative
                let failed = self.duplicates.contains(ip);
                let detected = addresses.iter_mut().filter(|address| address.ip == *ip);
                detected.for_each(|address| {
                    (address.tentative, address.dad_failed) = (failed, failed);
                    address.flags &= !IFA_F_OPTIMISTIC;
                });
            }
            netdev.detecting.retain(|_, left| *left > 0);
        }
        self.udev_passes(1);
        for hca in &mut self.hcas {
            hca.udev = hca.udev.saturating_sub(1);
        }
    }
}
