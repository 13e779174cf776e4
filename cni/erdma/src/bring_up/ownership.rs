// SPDX-License-Identifier: Apache-2.0
//! Determines whether another program configured a NIC, from the state of its netdev and of the netdevs on top of it.
//! This module has no I/O.

use super::record::{Given, Record};
use rdma_netns::{Address, InterfaceName, Link, Namespace, Route};
use std::net::IpAddr;

/// Configuration of a netdev by another program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForeignConfig {
    /// The netdev is a port of a master, such as a bond or bridge.
    #[error(
        "{netdev} is a port of {}",
        master.as_deref().unwrap_or("another netdev")
    )]
    Port {
        /// Name of the netdev.
        netdev: InterfaceName,
        /// Name of the master. `None`: the master is not in the host's namespace.
        master: Option<InterfaceName>,
    },
    /// The netdev has an address.
    #[error("{netdev} has {ip}/{prefix} already")]
    Address {
        /// Name of the netdev.
        netdev: InterfaceName,
        /// Address.
        ip: IpAddr,
        /// Length of the address's prefix, in bits.
        prefix: u8,
    },
    /// Another netdev uses the NIC as its lower device: a VLAN, a macvlan, a tunnel.
    #[error("{upper} uses {netdev} as its lower device")]
    Below {
        /// Name of the NIC's netdev.
        netdev: InterfaceName,
        /// Name of the netdev that uses the NIC's netdev.
        upper: InterfaceName,
    },
    /// The netdev has a route.
    #[error("{netdev} has a route to {destination}/{prefix} already")]
    Route {
        /// Name of the netdev.
        netdev: InterfaceName,
        /// Destination of the route.
        destination: IpAddr,
        /// Length of the destination's prefix, in bits.
        prefix: u8,
    },
}

/// Returns the configuration of another program on `link`. The daemon does not configure such a netdev. `record` is the
/// daemon's own earlier configuration.
///
/// - Link-local addresses, and addresses and routes that the kernel makes, do not count.
/// - IPv6 does not count if there is a record.
/// - While the netdev has the address that the daemon assigned, only a master of the netdev counts.
pub fn foreign_config(
    link: &Link,
    host: &Namespace,
    record: Option<&Record>,
) -> Option<ForeignConfig> {
    let netdev = link.name.clone();
    if let Some(master) = link.master {
        let master = host.link_by_index(master).map(|it| it.name.clone());
        return Some(ForeignConfig::Port { netdev, master });
    }
    let given = record.map(|record| &record.given);
    let is_given =
        |it: &Address, given: &Given| it.same_as(&given.address) && it.flags == given.address.flags;
    let has_ours = |given| link.addresses.iter().any(|it| is_given(it, given));
    if given.is_some_and(has_ours) {
        return None;
    }
    let counts = |ip: IpAddr| ip.is_ipv4() || record.is_none();
    let is_somebodys = |it: &&Address| counts(it.ip) && is_configured(it);
    if let Some(first) = link.addresses.iter().find(is_somebodys) {
        let (ip, prefix) = (first.ip, first.prefix);
        return Some(ForeignConfig::Address { netdev, ip, prefix });
    }
    if let Some(upper) = uppers(link, host).next() {
        let upper = upper.name.clone();
        return Some(ForeignConfig::Below { netdev, upper });
    }
    let was_given = |it: &Route| {
        record.is_some_and(|record| record.gifts().any(|given| given.routes.contains(it)))
    };
    let mut routes = link.routes.iter();
    let first =
        routes.find(|it| counts(it.destination) && !link.makes_itself(it) && !was_given(it))?;
    Some(ForeignConfig::Route {
        netdev,
        destination: first.destination,
        prefix: first.prefix,
    })
}

/// Returns the netdevs that use `link` as their lower device.
pub(super) fn uppers<'a>(link: &Link, host: &'a Namespace) -> impl Iterator<Item = &'a Link> {
    let index = link.index;
    let links = host.links.iter();
    links.filter(move |it| it.index != index && it.lower == Some(index))
}

/// Returns true if a program has assigned this address. Link-local addresses do not count.
fn is_configured(address: &Address) -> bool {
    let is_link_local = match address.ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !is_link_local && !address.automatic
}
