// SPDX-License-Identifier: Apache-2.0
//! Plans the desired configuration of a NIC, and the missing changes. This module neither observes nor changes the
//! kernel's state.
//!
//! The NIC's routes have higher metrics than the node's own routes to the same destinations: the default route, and the
//! route to the vSwitch's network if the node's first NIC is in the same vSwitch. The address gets no prefix route of
//! the kernel, because that route would have the metric 0.
//!
//! `rp_filter` is 2 (loose). If two NICs are in one network, the route back to a neighbour uses the node's first NIC.
//! Strict filtering would then drop all packets from the neighbour to the second NIC, including RDMA connection
//! requests. The kernel uses the larger of the netdev's value and the value of `conf/all` (`IN_DEV_RPFILTER`,
//! `include/linux/inetdevice.h`). Only 2 works with any value of `conf/all`.
//!
//! ARP settings stay unchanged: in a VPC the vSwitch answers for all addresses, and instances receive no ARP requests.

use super::record::{Given, RP_FILTER, Record, Settings};
use ipnetwork::Ipv4Network;
use rdma_netns::{
    Address, InterfaceName, Link, LinkChange, Namespace, NetnsSide, Op, Route,
    link::{IFA_F_NOPREFIXROUTE, SCOPE_LINK},
};
use std::net::{IpAddr, Ipv4Addr};

/// Lowest metric of a route that the daemon assigns.
const METRIC: u32 = 200;

/// Value of [`RP_FILTER`]: loose mode.
const LOOSE: i32 = 2;

/// Desired address of a NIC, from the cloud or the configuration, and the desired MTU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredNic {
    /// Address, with the prefix length of its network.
    pub address: Ipv4Network,
    /// Router of the network. `None`: the NIC gets no default route.
    pub gateway: Option<Ipv4Addr>,
    /// MTU in bytes, if the NIC supports it.
    pub mtu: u32,
}

/// Error: another netdev of this node has the NIC's desired address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address} is already on {netdev}: remove it there, or give this NIC another address")]
pub struct AddressTaken {
    /// Desired address of the NIC.
    pub address: Ipv4Addr,
    /// Netdev that already has the address.
    pub netdev: InterfaceName,
}

/// The other NICs that the daemon has brought up and whose netdevs are on the host.
#[derive(Clone, Debug, Default)]
pub struct Siblings {
    /// Indexes of the NICs' netdevs.
    pub links: Vec<u32>,
    /// Routes that the daemon assigned to these NICs. The kernel may have removed some of them.
    pub routes: Vec<Route>,
}

/// Returns the configuration for `link`. Keeps the metric in `record` if it is still valid. If the daemon no longer
/// sets an MTU, restores the recorded MTU.
///
/// # Errors
/// [`AddressTaken`]
pub fn give(
    link: &Link,
    host: &Namespace,
    wanted: &DesiredNic,
    record: Option<&Record>,
    siblings: &Siblings,
) -> Result<Given, AddressTaken> {
    let ip = wanted.address.ip();
    let others = || host.links.iter().filter(|it| it.index != link.index);
    let has_it = |it: &&Link| it.addresses.iter().any(|it| it.ip == IpAddr::V4(ip));
    if let Some(other) = others().find(has_it) {
        return Err(AddressTaken {
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
    Ok(Given {
        mtu: jumbo.or(had_other.map(|record| record.before.mtu)),
        address: Address {
            flags: IFA_F_NOPREFIXROUTE,
            ..Address::new(ip.into(), wanted.address.prefix())
        },
        routes,
        settings: Settings {
            rp_filter: link.sysctls.get(RP_FILTER).map(|_| LOOSE),
        },
    })
}

/// Returns a metric for `route` that is higher than the metrics of other netdevs' routes to the same destination. Keeps
/// the route's metric in `given` if it is higher than the metrics of foreign netdevs, and if no other netdev has it.
/// Without this rule, several NICs would raise their metrics above each other without end.
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
    let foreign_links = others().filter(|it| !siblings.links.contains(&it.index));
    let foreign_metric = foreign_links
        .flat_map(|it| &it.routes)
        .filter(same)
        .map(metric)
        .max();
    let before = given.and_then(|given| given.routes.iter().find(same)?.metric);
    let stays = |it: &u32| {
        *it >= METRIC && foreign_metric.is_none_or(|other| other < *it) && taken().all(|m| m != *it)
    };
    before.filter(stays).unwrap_or_else(|| {
        let behind = taken().max().map_or(0, |highest| highest.saturating_add(1));
        METRIC.max(behind)
    })
}

/// Returns the assigned route to the NIC's network if only NICs of the daemon have a route to this network. The node's
/// own traffic to the network then leaves by one of these NICs, because their routes are more specific than the default
/// route.
pub fn exclusive_route<'a>(
    link: &Link,
    host: &Namespace,
    given: &'a Given,
    siblings: &Siblings,
) -> Option<&'a Route> {
    let route = given.routes.iter().find(|it| it.gateway.is_none())?;
    let is_foreign = |it: &&Link| it.index != link.index && !siblings.links.contains(&it.index);
    let foreign_links = host.links.iter().filter(is_foreign);
    let mut routes = foreign_links.flat_map(|it| &it.routes);
    let is_there = routes.any(|it| it.same_destination(route));
    (!is_there).then_some(route)
}

/// Returns the changes that give `link` the present configuration in `record` and remove the earlier ones. Routes of
/// other programs come last, because their gateways can be in the network of the present configuration.
pub fn missing(link: &Link, record: &Record) -> Vec<Op> {
    let (before, given, superseded) = (link, &record.given, &record.superseded);
    let mut stale = routes_of(superseded.iter());
    stale.retain(|it| !given.routes.contains(it));
    let superseded = superseded.iter().map(|earlier| &earlier.address);
    let superseded = superseded.filter(|it| !it.same_as(&given.address));
    let mut link = link.clone();
    let mut ops = remove(&mut link, record, &stale, superseded);
    let mut set = |change| ops.push(Op::link(NetnsSide::Host, &link.name, change));
    let present = link.sysctls.get(RP_FILTER);
    let differs = |value: &i32| present.is_some_and(|present| present != value);
    if let Some(value) = given.settings.rp_filter.filter(differs) {
        let key = RP_FILTER.to_owned();
        set(LinkChange::Sysctl { key, value });
    }
    if let Some(mtu) = given.mtu.filter(|mtu| link.mtu != *mtu) {
        set(LinkChange::Mtu(mtu));
    }
    if !link.up {
        set(LinkChange::Up(true));
    }
    // keep an address with another prefix or other flags: another program has set it
    if !link.addresses.iter().any(|it| it.ip == given.address.ip) {
        set(LinkChange::AddAddress(given.address.clone()));
    }
    for route in &given.routes {
        if !link.routes.contains(route) {
            set(LinkChange::AddRoute(route.clone()));
        }
    }
    ops.extend(set_again(before, &link, record));
    ops
}

/// Returns the routes of `gifts`, each once.
pub(super) fn routes_of<'a>(gifts: impl Iterator<Item = &'a Given>) -> Vec<&'a Route> {
    let mut routes = vec![];
    for route in gifts.flat_map(|given| &given.routes) {
        if !routes.contains(&route) {
            routes.push(route);
        }
    }
    routes
}

/// Returns the operations that remove those of `routes`, and then those of `addresses`, that `link` has. Before, the
/// operations set the lost addresses in `record` again. Changes `link` to the state after these operations.
pub(super) fn remove<'a>(
    link: &mut Link,
    record: &Record,
    routes: &[&Route],
    addresses: impl Iterator<Item = &'a Address>,
) -> Vec<Op> {
    // remove the default route first, because it depends on the connected route
    let present = routes.iter().rev().filter(|it| link.routes.contains(it));
    let remove = |it: &&Route| {
        let change = LinkChange::RemoveRoute((*it).clone());
        Op::link(NetnsSide::Host, &link.name, change)
    };
    let mut ops: Vec<Op> = present.map(remove).collect();
    for change in record.lost_by(link) {
        if let LinkChange::AddAddress(it) = change
            && link.address(it).is_none()
        {
            ops.push(Op::link(NetnsSide::Host, &link.name, change.clone()));
            link.addresses.push(it.clone());
        }
    }
    link.routes.retain(|it| !routes.contains(&it));
    ops.extend(addresses.flat_map(|address| remove_address(link, address)));
    ops
}

/// Returns the operations that remove an address, if `link` has it, and set the addresses again that the kernel removes
/// with it. Changes `link` to the state after these operations. With an address, the kernel also removes:
///
/// - routes with this address as their source
/// - later addresses of the same network, if `promote_secondaries` is not set (`__inet_del_ifa()`,
///   `net/ipv4/devinet.c`)
/// - all IPv4 routes, if no IPv4 address is left (`fib_disable_ip()`, `net/ipv4/fib_frontend.c`)
fn remove_address(link: &mut Link, address: &Address) -> Vec<Op> {
    let is_it = |it: &Address| it.same_as(address);
    let Some(position) = link.addresses.iter().position(is_it) else {
        return vec![];
    };
    link.addresses.remove(position);
    let network = |it: &Address| match it.ip {
        IpAddr::V4(ip) => Ipv4Network::new(ip, it.prefix).ok().map(|it| it.network()),
        IpAddr::V6(_) => None,
    };
    let after = link.addresses[position..].iter();
    let others = after.filter(|it| it.prefix == address.prefix && network(it) == network(address));
    let others: Vec<&Address> = others.collect();
    let stays = |it: &Address| it.ip.is_ipv4() && !others.contains(&it);
    let is_last = !link.addresses.iter().any(stays);
    link.routes.retain(|route| {
        let is_source = |it: &Address| route.source == Some(it.ip);
        let has_source = !is_source(address) && !others.iter().any(|it| is_source(it));
        has_source && (!is_last || route.destination.is_ipv6())
    });
    let change = |change| Op::link(NetnsSide::Host, &link.name, change);
    let removal = change(LinkChange::RemoveAddress(address.clone()));
    let again = others
        .into_iter()
        .map(|it| LinkChange::AddAddress(it.clone()));
    std::iter::once(removal).chain(again.map(change)).collect()
}

/// Returns the operations that set routes of other programs again: the routes that `before` has or that are lost
/// according to `record`, that `after` lacks because the kernel removed them with an address, and whose source is still
/// an address.
pub(super) fn set_again(before: &Link, after: &Link, record: &Record) -> Vec<Op> {
    let own = routes_of(record.gifts());
    let is_there = |ip: IpAddr| after.addresses.iter().any(|it| it.ip == ip);
    let was_there = |ip: IpAddr| before.addresses.iter().any(|it| it.ip == ip);
    let has_source = |it: &Route| it.source.is_none_or(|ip| is_there(ip) || !was_there(ip));
    let recorded = record.lost_by(before).iter();
    let recorded = recorded.filter_map(|change| match change {
        LinkChange::AddRoute(it) if !before.routes.contains(it) => Some(it),
        _ => None,
    });
    let lost = before.lasting_routes().chain(recorded);
    let lost = lost.filter(|it| !after.routes.contains(it) && !own.contains(it));
    let lost = lost.filter(|it| has_source(it));
    let change = |it: &Route| LinkChange::AddRoute(it.clone());
    lost.map(|it| Op::link(NetnsSide::Host, &before.name, change(it)))
        .collect()
}

impl DesiredNic {
    /// Returns the desired state from which `given` was planned. Returns `None` if the address is not IPv4.
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
