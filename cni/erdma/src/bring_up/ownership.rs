// SPDX-License-Identifier: Apache-2.0
//! Whose a NIC is: pure, from what it has and what lies on it.

use super::record::{Given, Record};
use rdma_netns::{Address, InterfaceName, Link, Namespace, Route};
use std::{fmt, net::IpAddr};

/// By what a netdev is somebody else's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForeignConfig {
    /// It is a port of this one.
    Port {
        /// The netdev.
        netdev: InterfaceName,
        /// The bond's or bridge's name, if it is to be seen.
        master: Option<InterfaceName>,
    },
    /// It has an address that somebody gave it.
    Address {
        /// The netdev.
        netdev: InterfaceName,
        /// The address.
        ip: IpAddr,
        /// The length of its prefix, bits.
        prefix: u8,
    },
    /// This one lies on it: a VLAN, a macvlan, a tunnel.
    Below {
        /// The netdev.
        netdev: InterfaceName,
        /// The one on it.
        upper: InterfaceName,
    },
    /// Somebody made a route by it.
    Route {
        /// The netdev.
        netdev: InterfaceName,
        /// Where the route leads to.
        destination: IpAddr,
        /// The length of that prefix, bits.
        prefix: u8,
    },
}

/// By what `link` is not to be configured, if somebody else does that; `record` says what it was
/// given before.
///
/// An address or a route that the kernel made itself is nobody's configuration; nor is, once the
/// NIC is ours, one of IPv6. As long as it has the address that it was given, it is ours, whatever
/// it has besides.
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

/// The netdevs that lie on `link`.
pub(super) fn uppers<'a>(link: &Link, host: &'a Namespace) -> impl Iterator<Item = &'a Link> {
    let index = link.index;
    let links = host.links.iter();
    links.filter(move |it| it.index != index && it.lower == Some(index))
}

/// Whether somebody gave a netdev this address.
fn is_configured(address: &Address) -> bool {
    let is_link_local = match address.ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !is_link_local && !address.automatic
}

/// The sentence for the log.
impl fmt::Display for ForeignConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port { netdev, master } => match master {
                Some(master) => write!(f, "{netdev} is a port of {master}"),
                None => write!(f, "{netdev} is a port of another netdev"),
            },
            Self::Address { netdev, ip, prefix } => {
                write!(f, "{netdev} has {ip}/{prefix} already")
            }
            Self::Below { netdev, upper } => write!(f, "{upper} lies on {netdev}"),
            Self::Route {
                netdev,
                destination,
                prefix,
            } => write!(f, "{netdev} has a route to {destination}/{prefix} already"),
        }
    }
}
