// SPDX-License-Identifier: Apache-2.0
//! The netdevs by which the node is reachable. A move of one of them cuts off the node.

use super::{HOST, Linux, api_server, cannot_read, namespace};
use crate::{Link, ObserveError};
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Netdevs of this program's namespace, with their addresses.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// Names of the netdevs whose move cuts off the node.
    pub(super) uplinks: BTreeSet<String>,
    links: Vec<Link>,
}

/// The first IPv4 and the first IPv6 address of a netdev that are not link-local.
#[derive(Default)]
pub(super) struct Addresses {
    pub(super) ipv4: Option<Ipv4Addr>,
    /// IPv6 address, with the length of its prefix in bits.
    pub(super) ipv6: Option<(Ipv6Addr, u8)>,
}

impl Reach {
    /// Returns the addresses of the netdev `name`. For a family without an address, returns the address of `master`.
    pub(super) fn addresses_of(&self, name: &str, master: Option<&str>) -> Addresses {
        let mut found = Addresses::default();
        let names = std::iter::once(name).chain(master);
        let links = names.filter_map(|name| self.link(name));
        let addresses = links.flat_map(|link| &link.addresses);
        for address in addresses.filter(|it| !it.is_link_local()) {
            match address.ip {
                IpAddr::V4(ip) if ip.is_link_local() => {}
                IpAddr::V4(ip) => found.ipv4 = found.ipv4.or(Some(ip)),
                IpAddr::V6(ip) => found.ipv6 = found.ipv6.or(Some((ip, address.prefix))),
            }
        }
        found
    }

    /// Describes a netdev that lies on the netdev `name` ([`Link::above`]).
    pub(super) fn above(&self, name: &str) -> Option<String> {
        Some(self.link(name)?.above(&self.links)?.describe())
    }

    fn link(&self, name: &str) -> Option<&Link> {
        let mut links = self.links.iter();
        links.find(|it| *it.name == *name)
    }
}

impl Linux {
    pub(super) fn reach(&self) -> Result<Reach, ObserveError> {
        let host = self.host().map_err(cannot_read(HOST))?;
        let namespace = namespace::read(host, HOST, &self.sysfs, true)?;
        let uplinks = namespace.uplinks(&api_server::addresses());
        let uplinks = uplinks
            .keys()
            .filter_map(|index| namespace.link_by_index(*index));
        Ok(Reach {
            uplinks: uplinks.map(|link| link.name.to_string()).collect(),
            links: namespace.links,
        })
    }
}

/// Returns the network with a prefix of `length` bits that contains `ip`.
pub(super) fn network_of(ip: Ipv6Addr, length: u8) -> String {
    let mask = u128::MAX.checked_shl(128 - u32::from(length));
    let network = Ipv6Addr::from(u128::from(ip) & mask.unwrap_or(0));
    format!("{network}/{length}")
}
