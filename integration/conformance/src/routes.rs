// SPDX-License-Identifier: Apache-2.0
//! Routes of the host's netdevs.

use crate::{Node, ops::*};
use nix::errno::Errno;
use rdma_netns::{
    Kernel, Route,
    link::{RouteMetrics, SCOPE_LINK},
};

/// Returns the routes of `link` that the kernel did not make, sorted.
fn lasting(node: &Node<'_, impl Kernel>, link: &str) -> Vec<Route> {
    let link = node.host(link);
    let mut routes: Vec<_> = link.lasting_routes().cloned().collect();
    routes.sort();
    routes
}

/// The kernel refuses a gateway that is not reachable on the netdev's link, unless the route has `onlink`
/// (`fib_check_nh()`, `net/ipv4/fib_semantics.c`; `ip6_route_check_nh()`, `net/ipv6/route.c`).
pub fn a_gateway_has_to_be_on_the_link(node: &Node<'_, impl Kernel>) {
    node.addressed();
    node.make(up("nic1", true));
    let cases = [
        ("10.9.0.0/16", "10.0.0.1", "10.3.0.1", Errno::ENETUNREACH),
        ("fd99::/64", "fd00::1", "fd03::1", Errno::EHOSTUNREACH),
    ];
    for (destination, near, far, expected) in cases {
        let via = |gateway| route(destination, Some(gateway));
        assert_eq!(node.refused(add_route("nic0", via(far))), expected);
        // the gateway is on the link of `nic0`
        assert_eq!(node.refused(add_route("nic1", via(near))), expected);
        node.make(add_route("nic0", via(near)));
        let onlink = Route {
            onlink: true,
            ..via(far)
        };
        node.make(add_route("nic0", onlink));
    }
    node.make(add_route("nic0", route("10.8.0.0/16", Some("fe80::1"))));
}

/// The kernel refuses a route over a netdev that is down.
pub fn a_netdev_that_is_down_has_no_routes(node: &Node<'_, impl Kernel>) {
    for destination in ["10.9.0.0/16", "fd99::/64"] {
        let refused = node.refused(add_route("nic0", route(destination, None)));
        assert_eq!(refused, Errno::ENETDOWN, "{destination}");
    }
}

/// The kernel refuses the netdev's own IPv6 address as gateway (`ip6_validate_gw()`, `net/ipv6/route.c`).
pub fn one_s_own_address_is_no_gateway(node: &Node<'_, impl Kernel>) {
    node.addressed();
    let own = route("fd99::/64", Some("fd00::5"));
    assert_eq!(node.refused(add_route("nic0", own)), Errno::EINVAL);
}

/// A route's source must be an address of the node. An IPv6 address is usable only after its duplicate address
/// detection.
pub fn a_source_has_to_be_an_address_that_is_usable(node: &Node<'_, impl Kernel>) {
    node.up("nic0");
    node.make(add("nic0", address("10.0.0.5/24")));
    let from = |source: &str, destination| Route {
        source: Some(ip(source)),
        ..route(destination, None)
    };
    node.make(add_route("nic0", from("10.0.0.5", "10.9.0.0/16")));
    let missing = add_route("nic0", from("10.0.0.9", "10.8.0.0/16"));
    assert_eq!(node.refused(missing), Errno::EINVAL);
    node.make(add("nic0", address("fd00::6/64")));
    let with_source = add_route("nic0", from("fd00::6", "fd99::/64"));
    assert_eq!(node.refused(with_source.clone()), Errno::EINVAL);
    node.settle("nic0");
    node.make(with_source);
}

/// Adding a present route and removing a missing one are no errors.
pub fn a_route_that_is_there_is_added_in_peace(node: &Node<'_, impl Kernel>) {
    node.addressed();
    for (destination, gateway) in [("10.9.0.0/16", "10.0.0.1"), ("fd99::/64", "fd00::1")] {
        let there = || route(destination, Some(gateway));
        node.make(add_route("nic0", there()));
        node.make(add_route("nic0", there()));
        assert_eq!(lasting(node, "nic0"), [there()]);
        node.make(remove_route("nic0", there()));
        assert_eq!(lasting(node, "nic0"), []);
        node.make(remove_route("nic0", there()));
    }
}

/// The default metric, which is reported as `None`, is 0 for IPv4 and `IP6_RT_PRIO_USER` (1024) for IPv6.
pub fn the_default_metric_is_reported_as_none(node: &Node<'_, impl Kernel>) {
    node.addressed();
    let metric = |metric, destination| Route {
        metric: Some(metric),
        ..route(destination, None)
    };
    node.make(add_route("nic0", metric(0, "10.9.0.0/16")));
    node.make(add_route("nic0", metric(1024, "fd99::/64")));
    let metrics: Vec<_> = lasting(node, "nic0").iter().map(|it| it.metric).collect();
    assert_eq!(metrics, [None, None]);
}

/// Linux reports two IPv6 routes with the same destination and metric as one route with two next hops. `rdma_netns`
/// separates them again. If the netdev of one next hop goes down, its route stays as a dead one while the netdev of the
/// other next hop is up (`fib6_ifdown()`, `net/ipv6/route.c`).
pub fn ipv6_routes_of_two_netdevs_are_two(node: &Node<'_, impl Kernel>) {
    node.addressed();
    node.make(up("nic1", true));
    node.make(add("nic1", nodad("fd01::5/64")));
    node.make(add_route("nic0", route("::/0", Some("fd00::1"))));
    node.make(add_route("nic1", route("::/0", Some("fd01::1"))));
    let count = |link| lasting(node, link).len();
    assert_eq!((count("nic0"), count("nic1")), (1, 1));
    node.make(up("nic0", false));
    assert_eq!((count("nic0"), count("nic1")), (1, 1));
    node.make(up("nic1", false));
    assert_eq!((count("nic0"), count("nic1")), (0, 0));
}

fn metrics(numbers: &[(u16, u32)], congestion: Option<&str>) -> Option<Box<RouteMetrics>> {
    Some(Box::new(RouteMetrics {
        numbers: numbers.to_vec(),
        congestion: congestion.map(str::to_owned),
        realm: None,
    }))
}

/// The kernel reports an added route with all attributes. Adding a route again changes nothing. Removing a route
/// removes no other route.
pub fn what_was_added_is_seen(node: &Node<'_, impl Kernel>) {
    node.addressed();
    let with = |to, gateway, change: &dyn Fn(&mut Route)| {
        let mut route = route(to, gateway);
        change(&mut route);
        route
    };
    let (v4, v6) = (Some("10.0.0.1"), Some("fd00::1"));
    let mut wanted = vec![
        route("0.0.0.0/0", v4),
        with("0.0.0.0/0", v4, &|it| it.metric = Some(200)),
        with("10.1.0.0/16", None, &|it| it.scope = SCOPE_LINK),
        with("10.2.0.0/16", Some("10.0.0.2"), &|it| it.protocol = 3),
        with("10.3.0.0/16", v4, &|it| {
            it.source = Some(ip("10.0.0.5"));
            it.mtu = Some(1400);
            it.advmss = Some(1360);
        }),
        with("10.3.0.0/16", v4, &|it| it.tos = 0x10),
        with("10.4.0.0/16", Some("192.0.2.1"), &|it| it.onlink = true),
        with("0.0.0.0/0", v4, &|it| {
            it.table = 1001;
            it.metric = Some(7);
        }),
        route("10.5.0.0/16", v6),
        with("10.6.0.0/16", v4, &|it| {
            it.mtu = Some(1400);
            // RTAX_LOCK of RTAX_MTU, RTAX_INITCWND, RTAX_RTO_MIN, RTAX_QUICKACK
            it.metrics = metrics(&[(1, 1 << 2), (11, 30), (13, 50), (15, 1)], Some("reno"));
        }),
        with("224.0.0.0/4", None, &|it| it.scope = SCOPE_LINK),
        route("::/0", v6),
        with("::/0", v6, &|it| it.metric = Some(200)),
        route("fd01::/64", None),
        with("fd01:1::/64", v6, &|it| it.preference = 3),
        with("fd03::/64", v6, &|it| {
            it.source = Some(ip("fd00::5"));
            it.mtu = Some(1400);
            it.advmss = Some(1340);
        }),
        // RTAX_HOPLIMIT, RTAX_INITRWND
        with("fd03:1::/64", v6, &|it| {
            it.metrics = metrics(&[(10, 7), (14, 20)], None)
        }),
        with("fd04::/64", Some("fd99::1"), &|it| it.onlink = true),
        with("::/0", v6, &|it| it.table = 1001),
        with("::/0", Some("fe80::1"), &|it| it.table = 100),
    ];
    wanted
        .iter()
        .for_each(|it| node.make(add_route("nic0", it.clone())));
    wanted.sort();
    assert_eq!(lasting(node, "nic0"), wanted);
    wanted
        .iter()
        .for_each(|it| node.make(add_route("nic0", it.clone())));
    assert_eq!(lasting(node, "nic0"), wanted);
    for (at, route) in wanted.iter().enumerate() {
        node.make(remove_route("nic0", route.clone()));
        assert_eq!(lasting(node, "nic0"), wanted[at + 1..], "{route:?}");
    }
}
