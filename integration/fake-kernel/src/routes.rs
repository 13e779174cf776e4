// SPDX-License-Identifier: Apache-2.0
//! Routes: the kernel's checks, and the order in which the kernel reports them.

use crate::{
    addresses::network,
    netdev::Netdev,
    world::{Refusal, World, refuse},
};
use nix::errno::Errno;
use rdma_netns::{NetnsId, Route};
use std::net::IpAddr;

/// `IP6_RT_PRIO_USER`
const IPV6_METRIC: u32 = 1024;

impl World {
    /// Adds a route: `ip route append`. A present route is no error.
    pub(crate) fn add_route(
        &mut self,
        netns: NetnsId,
        link: &str,
        route: &Route,
    ) -> Result<(), Refusal> {
        let position = self.position(netns, link)?;
        let netdev = &self.netdevs[position];
        let route = normal(route);
        if network(route.destination, route.prefix) != route.destination {
            return refuse(Errno::EINVAL, "Invalid prefix for given prefix length");
        }
        if route.destination.is_ipv6() && !netdev.has_ipv6() {
            return refuse(Errno::EACCES, "IPv6 is disabled on nexthop device");
        }
        match (route.destination, route.gateway) {
            // fib_check_nh(), net/ipv4/fib_semantics.c
            (IpAddr::V4(_), Some(gateway)) if !self.reaches(position, gateway, &route) => {
                return refuse(Errno::ENETUNREACH, "Nexthop has invalid gateway");
            }
            _ if !netdev.link.up => {
                return refuse(Errno::ENETDOWN, "Nexthop device is not up");
            }
            // ip6_validate_gw(), net/ipv6/route.c
            (IpAddr::V6(_), Some(gateway)) if self.is_local(netns, gateway) => {
                return refuse(Errno::EINVAL, "Gateway can not be a local address");
            }
            (IpAddr::V6(_), Some(gateway)) if !self.reaches(position, gateway, &route) => {
                return Err(Errno::EHOSTUNREACH.into());
            }
            _ => {}
        }
        // an IPv6 source must have passed duplicate address detection
        if route.source.is_some_and(|ip| !self.is_local(netns, ip)) {
            return refuse(Errno::EINVAL, "Invalid source address");
        }
        let netdev = &mut self.netdevs[position];
        if !netdev.link.routes.iter().any(|it| it.same_as(&route)) {
            netdev.insert_route(route);
        }
        Ok(())
    }

    /// Removes a route: `ip route del`. A missing route is no error.
    pub(crate) fn remove_route(
        &mut self,
        netns: NetnsId,
        link: &str,
        route: &Route,
    ) -> Result<(), Refusal> {
        let route = normal(route);
        let routes = &mut self.netdev(netns, link)?.link.routes;
        if let Some(found) = routes.iter().position(|it| it.same_as(&route)) {
            routes.remove(found);
        }
        Ok(())
    }

    /// Removes the dead routes: the routes of netdevs that are down. A dead IPv6 route stays if a netdev that is up has
    /// a route with the same table, destination and metric, and both routes have a gateway: the kernel has one route
    /// with two next hops (`fib6_ifdown()`, `rt6_qualify_for_ecmp()`, `net/ipv6/route.c`).
    pub(crate) fn flush_dead_routes(&mut self) {
        let mut netdevs = self.netdevs.iter();
        if netdevs.all(|it| it.link.up || it.link.routes.is_empty()) {
            return;
        }
        let alive: Vec<(NetnsId, Route)> = (self.netdevs.iter())
            .filter(|netdev| netdev.link.up)
            .flat_map(|it| it.link.routes.iter().map(|route| (it.netns, route.clone())))
            .collect();
        for netdev in self.netdevs.iter_mut().filter(|it| !it.link.up) {
            let netns = netdev.netns;
            let with = |route: &Route| {
                let mut alive = alive.iter().filter(|it| it.0 == netns);
                alive.any(|(_, other)| is_one_with(route, other))
            };
            netdev.link.routes.retain(with);
        }
    }

    /// Returns true if `gateway` is reachable on the netdev's link: by `onlink`, as a link-local address, or by a route
    /// of this netdev without a gateway.
    fn reaches(&self, position: usize, gateway: IpAddr, route: &Route) -> bool {
        let link = &self.netdevs[position].link;
        if matches!(gateway, IpAddr::V6(ip) if ip.is_unicast_link_local()) || route.onlink {
            return link.up;
        }
        link.routes.iter().any(|other| {
            other.gateway.is_none()
                && other.destination.is_ipv4() == gateway.is_ipv4()
                && network(gateway, other.prefix) == other.destination
        })
    }
}

impl Netdev {
    /// Inserts a route in the order of the kernel's reports: by table, destination and metric.
    pub(crate) fn insert_route(&mut self, route: Route) {
        let key = |r: &Route| {
            (
                r.destination.is_ipv6(),
                r.table,
                r.destination,
                r.prefix,
                r.metric,
            )
        };
        let routes = &mut self.link.routes;
        routes.push(route);
        routes.sort_by_key(key);
    }
}

/// Returns true if the routes of two netdevs are next hops of one route.
fn is_one_with(route: &Route, other: &Route) -> bool {
    let of = |it: &Route| (it.destination, it.prefix, it.metric, it.table);
    let takes_part = |it: &Route| it.destination.is_ipv6() && it.gateway.is_some();
    takes_part(route) && takes_part(other) && of(route) == of(other)
}

/// Returns the route as the kernel reports it: the default metric is `None`.
fn normal(route: &Route) -> Route {
    let default = if route.destination.is_ipv4() {
        0
    } else {
        IPV6_METRIC
    };
    Route {
        metric: route.metric.filter(|metric| ![0, default].contains(metric)),
        ..route.clone()
    }
}
