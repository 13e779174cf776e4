// SPDX-License-Identifier: Apache-2.0
//! What a NIC is to have, and which changes are missing. Pure: nothing is looked at or changed.
//!
//! The routes stand behind those that the node has: its own default route, and its own route to
//! the vSwitch's network, which the NIC's is the same as when both are in one vSwitch. So the
//! address has no prefix route of the kernel's making, whose metric would be 0.
//!
//! `rp_filter` is 2 (loose): with two NICs in one network the way back to a neighbour is by the
//! node's first NIC, and strict filtering would drop all that the neighbour sends to the second
//! one, RDMA connection requests included. The kernel takes the larger one of this and of
//! `conf/all` (`IN_DEV_RPFILTER`, `include/linux/inetdevice.h`), so that only 2 is right whatever
//! that says. ARP settings are left as they are: in a VPC the vSwitch answers for all addresses,
//! and no instance is asked.

use super::record::{Given, Record};
use ipnetwork::Ipv4Network;
use rdma_netns::{
    Address, InterfaceName, Link, Namespace, NetnsSide, Op, Route,
    link::{IFA_F_NOPREFIXROUTE, SCOPE_LINK},
};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

/// The lowest metric of a route that is given.
const METRIC: u32 = 200;

/// Reverse path filtering of a netdev.
pub const RP_FILTER: &str = "ipv4/rp_filter";
const LOOSE: i32 = 2;

/// The address of a NIC, as the cloud or the configuration has it, and the MTU it should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredNic {
    /// The address, and the network that it is in.
    pub address: Ipv4Network,
    /// The network's router; none: no default route.
    pub gateway: Option<Ipv4Addr>,
    /// Bytes, where the NIC can have so much.
    pub mtu: u32,
}

/// Why a NIC cannot be configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The address is in use on this node.
    #[error("{address} is on {netdev} already: one of the two has to go")]
    Elsewhere {
        /// The address.
        address: Ipv4Addr,
        /// The netdev that has it.
        netdev: InterfaceName,
    },
}

/// What the other NICs have that were brought up.
#[derive(Clone, Debug, Default)]
pub struct Siblings {
    /// Indices of their netdevs.
    pub links: Vec<u32>,
    /// Routes that they were given, present or not.
    pub routes: Vec<Route>,
}

/// What `link` is to have. `record` says what it has been given before: a metric that still is
/// right stays, and an MTU that is not wanted any more is what it was.
///
/// # Errors
/// [`Obstacle`]
pub fn give(
    link: &Link,
    host: &Namespace,
    wanted: &DesiredNic,
    record: Option<&Record>,
    siblings: &Siblings,
) -> Result<Given, Obstacle> {
    let ip = wanted.address.ip();
    let others = || host.links.iter().filter(|it| it.index != link.index);
    let has_it = |it: &&Link| it.addresses.iter().any(|it| it.ip == IpAddr::V4(ip));
    if let Some(other) = others().find(has_it) {
        return Err(Obstacle::Elsewhere {
            address: ip,
            netdev: other.name.clone(),
        });
    }
    let can_have = |max: u32| max == 0 || max >= wanted.mtu;
    let mut routes = vec![Route {
        source: Some(ip.into()),
        scope: SCOPE_LINK,
        ..Route::new(wanted.address.network().into(), wanted.address.prefix())
    }];
    routes.extend(wanted.gateway.map(|gateway| Route {
        source: Some(ip.into()),
        gateway: Some(gateway.into()),
        ..Route::new(Ipv4Addr::UNSPECIFIED.into(), 0)
    }));
    let given = record.map(|record| &record.given);
    for route in &mut routes {
        route.metric = Some(metric(route, link, host, given, siblings));
    }
    let jumbo = link.max_mtu.is_some_and(can_have).then_some(wanted.mtu);
    let had_other = record.filter(|it| it.gifts().any(|given| given.mtu.is_some()));
    let has_filter = link.sysctls.contains_key(RP_FILTER);
    Ok(Given {
        mtu: jumbo.or(had_other.map(|record| record.before.mtu)),
        address: Address {
            flags: IFA_F_NOPREFIXROUTE,
            ..Address::new(ip.into(), wanted.address.prefix())
        },
        routes,
        settings: has_filter
            .then(|| (RP_FILTER.to_owned(), LOOSE))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
    })
}

/// The metric of `route`: behind all that other netdevs have to the same destination.
///
/// One that was given before stays as long as it is behind those of netdevs that are not ours,
/// and nobody else's: of several NICs each would else go behind the others for ever.
fn metric(
    route: &Route,
    link: &Link,
    host: &Namespace,
    given: Option<&Given>,
    siblings: &Siblings,
) -> u32 {
    let same = |it: &&Route| it.same_destination(route);
    let metric = |it: &Route| it.metric.unwrap_or(it.default_metric());
    let others = || host.links.iter().filter(|it| it.index != link.index);
    let taken = || {
        let present = others().flat_map(|it| &it.routes);
        present.chain(&siblings.routes).filter(same).map(metric)
    };
    let strangers = others().filter(|it| !siblings.links.contains(&it.index));
    let of_strangers = strangers
        .flat_map(|it| &it.routes)
        .filter(same)
        .map(metric)
        .max();
    let before = given.and_then(|given| given.routes.iter().find(same)?.metric);
    let stays = |it: &u32| {
        *it >= METRIC && of_strangers.is_none_or(|other| other < *it) && taken().all(|m| m != *it)
    };
    before.filter(stays).unwrap_or_else(|| {
        let behind = taken().max().map_or(0, |highest| highest.saturating_add(1));
        METRIC.max(behind)
    })
}

/// The network that the node had no way to of its own, so that its traffic there leaves by `link`:
/// the route that is `given` is more specific than the node's default route. Routes of other NICs
/// of ours do not count.
pub fn alone<'a>(
    link: &Link,
    host: &Namespace,
    given: &'a Given,
    siblings: &Siblings,
) -> Option<&'a Route> {
    let route = given.routes.iter().find(|it| it.gateway.is_none())?;
    let is_strange = |it: &&Link| it.index != link.index && !siblings.links.contains(&it.index);
    let strangers = host.links.iter().filter(is_strange);
    let mut routes = strangers.flat_map(|it| &it.routes);
    let is_there = routes.any(|it| it.same_destination(route));
    (!is_there).then_some(route)
}

/// The changes that `link` lacks to have what it is `given`, and nothing of what is `superseded`.
pub fn missing(link: &Link, given: &Given, superseded: &[Given]) -> Vec<Op> {
    let (at, name) = (NetnsSide::Host, || link.name.clone());
    let mut ops = vec![];
    for earlier in superseded {
        let stale = earlier
            .routes
            .iter()
            .filter(|it| !given.routes.contains(it));
        ops.extend(taken_routes(link, stale));
        let address = link.address(&earlier.address);
        if address.is_some_and(|it| !it.same_as(&given.address)) {
            ops.extend(taken_address(link, &earlier.address));
        }
    }
    for (key, value) in &given.settings {
        if link
            .sysctls
            .get(key)
            .is_some_and(|present| present != value)
        {
            let (link, key, value) = (name(), key.clone(), *value);
            ops.push(Op::SetSysctl {
                at,
                link,
                key,
                value,
            });
        }
    }
    if let Some(mtu) = given.mtu.filter(|mtu| link.mtu != *mtu) {
        ops.push(Op::SetMtu {
            at,
            link: name(),
            mtu,
        });
    }
    if !link.up {
        ops.push(Op::SetUp {
            at,
            link: name(),
            up: true,
        });
    }
    // with another prefix, or other flags, it is somebody else's, and there all the same
    if !link.addresses.iter().any(|it| it.ip == given.address.ip) {
        let address = given.address.clone();
        ops.push(Op::AddAddress {
            at,
            link: name(),
            address,
        });
    }
    for route in &given.routes {
        if !link.routes.contains(route) {
            let route = route.clone();
            ops.push(Op::AddRoute {
                at,
                link: name(),
                route,
            });
        }
    }
    ops
}

/// Takes those of `routes` away that are there.
pub(super) fn taken_routes<'a>(link: &Link, routes: impl Iterator<Item = &'a Route>) -> Vec<Op> {
    let present = routes.filter(|route| link.routes.contains(route));
    let mut ops: Vec<Op> = present
        .map(|route| Op::RemoveRoute {
            at: NetnsSide::Host,
            link: link.name.clone(),
            route: route.clone(),
        })
        .collect();
    // the default route goes by the connected one
    ops.reverse();
    ops
}

/// Takes an address away that is there. The kernel takes those along that came after it in the
/// same network, unless `promote_secondaries` is set (`__inet_del_ifa()`, `net/ipv4/devinet.c`),
/// and every route that has one of them as its source: these are given back.
pub(super) fn taken_address(link: &Link, address: &Address) -> Vec<Op> {
    let at = NetnsSide::Host;
    let mut ops = vec![Op::RemoveAddress {
        at,
        link: link.name.clone(),
        address: address.clone(),
    }];
    let network = |it: &Address| match it.ip {
        IpAddr::V4(ip) => Ipv4Network::new(ip, it.prefix).ok().map(|it| it.network()),
        IpAddr::V6(_) => None,
    };
    let after = link
        .addresses
        .iter()
        .skip_while(|it| !it.same_as(address))
        .skip(1);
    let others = after.filter(|it| it.prefix == address.prefix && network(it) == network(address));
    for other in others {
        ops.push(Op::AddAddress {
            at,
            link: link.name.clone(),
            address: other.clone(),
        });
        let by_it = |route: &&Route| route.source == Some(other.ip);
        ops.extend(
            link.lasting_routes()
                .filter(by_it)
                .map(|route| Op::AddRoute {
                    at,
                    link: link.name.clone(),
                    route: route.clone(),
                }),
        );
    }
    ops
}

impl DesiredNic {
    /// What led to `given`; none for an address that is not IPv4.
    pub fn of(given: &Given) -> Option<Self> {
        let IpAddr::V4(ip) = given.address.ip else {
            return None;
        };
        let gateway = given.routes.iter().find_map(|route| match route.gateway {
            Some(IpAddr::V4(gateway)) => Some(gateway),
            _ => None,
        });
        Some(Self {
            address: Ipv4Network::new(ip, given.address.prefix).ok()?,
            gateway,
            mtu: given.mtu.unwrap_or_default(),
        })
    }
}
