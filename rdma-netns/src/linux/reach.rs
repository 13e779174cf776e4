// SPDX-License-Identifier: Apache-2.0
//! The netdevs without which the node is cut off.

use super::{HOST, Linux, api_server, cannot_read, namespace};
use crate::{Link, ObserveError};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv6Addr},
};

/// Netdevs of this program's namespace in routes and addresses, by name.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// Netdevs without which the node is cut off.
    pub(super) uplinks: BTreeSet<String>,
    /// The network of the first IPv6 address that is not link-local.
    pub(super) ipv6_prefixes: BTreeMap<String, String>,
}

impl Linux {
    pub(super) fn reach(&self) -> Result<Reach, ObserveError> {
        let host = self
            .host()
            .map_err(|error| cannot_read(HOST, error.into()))?;
        let namespace = namespace::read(host, HOST, &self.sysfs, true)?;
        let uplinks = namespace.uplinks(&api_server::addresses());
        let uplinks = uplinks
            .keys()
            .filter_map(|index| namespace.link_by_index(*index));
        let prefix = |link: &Link| {
            let mut addresses = link.addresses.iter().filter(|it| !it.is_link_local());
            let network = addresses.find_map(|it| match it.ip {
                IpAddr::V6(ip) => Some(network_of(ip, it.prefix)),
                IpAddr::V4(_) => None,
            });
            Some((link.name.to_string(), network?))
        };
        Ok(Reach {
            uplinks: uplinks.map(|link| link.name.to_string()).collect(),
            ipv6_prefixes: namespace.links.iter().filter_map(prefix).collect(),
        })
    }
}

/// The network of `length` bits that `ip` is in.
fn network_of(ip: Ipv6Addr, length: u8) -> String {
    let mask = u128::MAX.checked_shl(128 - u32::from(length));
    let network = Ipv6Addr::from(u128::from(ip) & mask.unwrap_or(0));
    format!("{network}/{length}")
}
