//! The netdevs without which a node is cut off.
//!
//! | netdev | why |
//! |---|---|
//! | that the IPv4 default route leaves by | kubelet takes the node's address from there |
//! | that the IPv6 default route leaves by | the same; where there are several equal ones, and an IPv4 one, only the netdev that has that, too |
//! | that an API server is reached by | kubelet speaks to it |
//! | that one of them lies on, or that is a port of it | it goes by that |
//!
//! A default route is one of the main table with the lowest metric of its family, and of those with the highest
//! preference that routers advertise (RFC 4191, section 2.1). Others are behind it, as those of rails are. Several equal IPv6 ones come from routers' advertisements on every netdev. Kubelet takes the node's
//! address from the IPv4 default route, and from the IPv6 one where there is none
//! (`chooseHostInterface()`, `k8s.io/apimachinery/pkg/util/net/interface.go`).

use crate::{
    Link, Namespace, Route,
    link::{HIGH_PREFERENCE, LOW_PREFERENCE, MAIN_TABLE},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

/// Why the node would be cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// A default route leaves by it.
    DefaultRoute,
    /// This API server is reached by it.
    ApiServer(IpAddr),
}

impl fmt::Display for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DefaultRoute => f.write_str("the node's default route leaves by it"),
            Self::ApiServer(server) => write!(f, "the node reaches its API server {server} by it"),
        }
    }
}

impl Namespace {
    /// The netdevs without which the node that has this namespace is cut off, by their indices.
    pub fn uplinks(&self, api_servers: &[IpAddr]) -> BTreeMap<u32, Uplink> {
        let ipv4 = self.default_netdevs(false);
        let ipv6 = self.default_netdevs(true);
        let by_both: BTreeSet<u32> = ipv6.intersection(&ipv4).copied().collect();
        let ipv6 = match ipv6.len() > 1 && !ipv4.is_empty() {
            true => by_both,
            false => ipv6,
        };
        let mut found: BTreeMap<u32, Uplink> = BTreeMap::new();
        for netdev in ipv4.union(&ipv6) {
            self.add_with_lower(*netdev, Uplink::DefaultRoute, &mut found);
        }
        for server in api_servers {
            for netdev in self.towards(*server) {
                self.add_with_lower(netdev, Uplink::ApiServer(*server), &mut found);
            }
        }
        found
    }

    fn add_with_lower(&self, netdev: u32, why: Uplink, found: &mut BTreeMap<u32, Uplink>) {
        if found.contains_key(&netdev) {
            return;
        }
        found.insert(netdev, why);
        let lower = self.link_by_index(netdev).and_then(|link| link.lower);
        let ports = self.links.iter().filter(|it| it.master == Some(netdev));
        for below in ports.map(|port| port.index).chain(lower) {
            self.add_with_lower(below, why, found);
        }
    }

    /// All routes of the main table, with the indices of their netdevs.
    fn main_routes(&self) -> impl Iterator<Item = (u32, &Route)> {
        let kept = |link: &'_ Link| link.index;
        let own = self
            .links
            .iter()
            .flat_map(move |link| link.routes.iter().map(move |route| (kept(link), route)));
        let others = self
            .unkept_routes
            .iter()
            .map(|(index, route)| (*index, route));
        own.chain(others)
            .filter(|(_, route)| route.table == MAIN_TABLE)
    }

    /// The netdevs of a family's default routes of the lowest metric.
    fn default_netdevs(&self, ipv6: bool) -> BTreeSet<u32> {
        let routes = || {
            self.main_routes()
                .filter(|(_, route)| route.prefix == 0 && route.destination.is_ipv6() == ipv6)
        };
        let first = routes().map(|(_, route)| rank(route)).min();
        let best = routes().filter(|(_, route)| Some(rank(route)) == first);
        best.map(|(netdev, _)| netdev).collect()
    }

    /// The netdevs by which `address` is reached, other than by a default route; the one that has it, if it
    /// is the node's own.
    fn towards(&self, address: IpAddr) -> BTreeSet<u32> {
        let has = |link: &&Link| link.addresses.iter().any(|it| it.ip == address);
        if let Some(own) = self.links.iter().find(has) {
            return BTreeSet::from([own.index]);
        }
        let fitting = || {
            self.main_routes()
                .filter(|(_, route)| route.prefix > 0 && route.leads_to(address))
        };
        let order = |route: &Route| (std::cmp::Reverse(route.prefix), rank(route));
        let best = fitting().map(|(_, route)| order(route)).min();
        let best = fitting().filter(|(_, route)| Some(order(route)) == best);
        best.map(|(netdev, _)| netdev).collect()
    }
}

/// Which of several routes to one destination the kernel takes: the lowest (`rt6_score_route()`,
/// `net/ipv6/route.c`, for the preference).
fn rank(route: &Route) -> (u32, u8) {
    let preference = match route.preference {
        HIGH_PREFERENCE => 0,
        LOW_PREFERENCE => 2,
        _ => 1,
    };
    (route.metric.unwrap_or(route.default_metric()), preference)
}

#[cfg(test)]
#[path = "uplink_tests.rs"]
mod tests;
