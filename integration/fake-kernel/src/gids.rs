// SPDX-License-Identifier: Apache-2.0
//! GID tables: each address of an RDMA port's netdev, and of its upper netdevs, has GIDs
//! (`drivers/infiniband/core/roce_gid_mgmt.c`, `cache.c`). The namespaces of these netdevs do not matter, not even in
//! exclusive mode. The RDMA device's namespace determines who sees the table.

use crate::{gid_table::Owner, hca::Hca, netdev::Netdev, world::World};
use rdma_netns::{Address, Gid, GidKind, GidTable, NetnsId, RdmaMode};
use std::net::{IpAddr, Ipv6Addr};

impl World {
    /// Returns the GID table of a port as `netns` sees it. `None`: the namespace sees no such device, or the device has
    /// no such port. Each call shortens the delay of hidden GIDs ([`World::gid_delay`]).
    pub fn gids(&mut self, netns: NetnsId, device: &str, port: u32) -> Option<GidTable> {
        self.refresh_gids();
        let shared = self.rdma_mode == Some(RdmaMode::Shared);
        let size = self.gid_table_size;
        let netdevs = &self.netdevs;
        let name = |id: u64| netdevs.iter().find(|netdev| netdev.id == id);
        let mut hcas = self.hcas.iter_mut();
        let hca = hcas.find(|hca| hca.name == device && (shared || hca.netns == netns))?;
        if port != 1 {
            return None;
        }
        if hca.ipoib {
            let gids = vec![port_gid(&hca.guid)];
            return Some(GidTable { size, gids });
        }
        let mut gids = vec![];
        for (index, place) in hca.gids.places.iter_mut().enumerate() {
            let Some(place) = place else { continue };
            if place.hidden > 0 {
                place.hidden -= 1;
                continue;
            }
            let (id, ip) = place.owner;
            gids.push(Gid {
                index: u32::try_from(index).unwrap_or(u32::MAX),
                ip: match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                },
                kind: place.kind,
                netdev: name(id).map(|netdev| netdev.link.name.to_string()),
            });
        }
        Some(GidTable { size, gids })
    }

    /// Updates all tables from the netdevs' present addresses.
    pub(crate) fn refresh_gids(&mut self) {
        let (size, hidden) = (self.gid_table_size as usize, self.gid_delay);
        for position in 0..self.hcas.len() {
            let hca = &self.hcas[position];
            let root = self.gid_root(hca);
            let counts = |netdev: &&Netdev| {
                root.is_some_and(|root| netdev.id == root || self.lies_on(netdev.id, root))
            };
            let owners: Vec<Owner> = self
                .netdevs
                .iter()
                .filter(counts)
                .flat_map(|netdev| {
                    let addresses = netdev.link.addresses.iter();
                    addresses.map(|address| (netdev.id, gid_of(address)))
                })
                .collect();
            let table = &mut self.hcas[position].gids;
            table.keep(&owners);
            for owner in owners {
                if table.knows(&owner) {
                    continue;
                }
                if self.gids_of_roce_v1 {
                    table.add(owner, GidKind::InfinibandOrRoceV1, size, hidden);
                }
                table.add(owner, GidKind::RoceV2, size, hidden);
            }
        }
    }

    /// Returns the lowest netdev whose addresses have GIDs: the port's netdev, or its bond. The addresses of its upper
    /// netdevs also have GIDs.
    fn gid_root(&self, hca: &Hca) -> Option<u64> {
        let own = self.netdevs.iter().find(|n| Some(n.id) == hca.netdev)?;
        let Some(master) = own.link.master else {
            return Some(own.id);
        };
        let is_it = |n: &&Netdev| n.netns == own.netns && n.link.index == master;
        let bond = self.netdevs.iter().find(is_it)?;
        match bond.link.kind.as_deref() {
            Some("bond") => Some(bond.id),
            _ => Some(own.id),
        }
    }
}

/// Returns the IP address of the GID for `address`: the peer of an IPv4 address that has one (`inetaddr_event()`),
/// otherwise the address itself.
fn gid_of(address: &Address) -> IpAddr {
    match address.ip {
        IpAddr::V4(ip) => address.peer.unwrap_or(ip.into()),
        IpAddr::V6(ip) => ip.into(),
    }
}

/// Returns the GID of an InfiniBand port: link-local prefix and `guid`.
fn port_gid(guid: &str) -> Gid {
    let digits: String = guid.chars().filter(|c| *c != ':').collect();
    let guid = u64::from_str_radix(&digits, 16).unwrap_or_default();
    Gid {
        index: 0,
        ip: Ipv6Addr::from(0xfe80_u128 << 112 | u128::from(guid)),
        kind: GidKind::InfinibandOrRoceV1,
        netdev: None,
    }
}
