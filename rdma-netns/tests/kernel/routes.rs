// SPDX-License-Identifier: Apache-2.0
//! Tests of routes: which routes the kernel makes, and which routes an observation reports.

use crate::world::{World, interface, with_node};
use nix::libc;
use rdma_netns::{LinkChange, NetnsSide, Op, Route};
use std::net::IpAddr;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an IP address")
}

fn add(route: &Route) -> Op {
    Op::Link {
        at: NetnsSide::Host,
        link: interface("nic0"),
        change: LinkChange::AddRoute(route.clone()),
    }
}

/// Returns the routes of `nic0` that the kernel did not make.
fn seen(world: &World) -> Vec<Route> {
    let link = world.host_link("nic0");
    let mut routes: Vec<_> = link.lasting_routes().cloned().collect();
    routes.sort();
    routes
}

fn node_with_addresses(test: impl FnOnce(&World) + Send) {
    with_node(|world| {
        world.ip("address add 10.0.0.5/24 dev nic0");
        world.ip("address add fd00::5/64 dev nic0 nodad");
        test(world);
    });
}

/// Network managers set routes that look like the kernel's, and process router advertisements themselves.
#[test]
fn routes_of_managers_are_distinguished_from_the_kernels() {
    node_with_addresses(|world| {
        for line in [
            "address add 10.9.0.5/24 dev nic0 noprefixroute",
            "route add 10.9.0.0/24 dev nic0 proto kernel scope link src 10.9.0.5 metric 100",
            "address add 10.8.0.5/24 dev nic0 metric 77",
            "-6 route add fd09::/64 dev nic0 proto ra expires 100",
            "-6 route add fd08::/64 via fe80::1 dev nic0 proto 16 expires 4000000",
        ] {
            world.ip(line);
        }
        let mut link = world.host_link("nic0");
        let made = |link: &rdma_netns::Link, network: &str| {
            let found = link.routes.iter().find(|it| it.destination == ip(network));
            let route = found.unwrap_or_else(|| panic!("no route to {network}"));
            (link.makes_itself(route), route.expires)
        };
        for (network, is_made) in [("10.0.0.0", true), ("10.8.0.0", true), ("10.9.0.0", false)] {
            assert_eq!(made(&link, network), (is_made, None), "{network}");
        }
        assert_eq!(made(&link, "fe80::"), (true, None));
        let (is_made, expires) = made(&link, "fd08::");
        assert!(
            !is_made && matches!(expires, Some(3_999_990..=4_000_000)),
            "{expires:?}"
        );
        for (accept_ra, is_made) in [(0, false), (1, true), (2, true)] {
            link.sysctls.insert("ipv6/accept_ra".into(), accept_ra);
            let (made, expires) = made(&link, "fd09::");
            assert_eq!(made, is_made, "accept_ra {accept_ra}");
            assert!(matches!(expires, Some(90..=100)), "{expires:?}");
        }
        link.sysctls.insert("ipv6/accept_ra".into(), 1);
        link.sysctls.insert("ipv6/forwarding".into(), 1);
        assert!(!made(&link, "fd09::").0, "a router takes none");
    });
}

#[test]
fn connected_routes_are_the_kernels() {
    node_with_addresses(|world| {
        let link = world.host_link("nic0");
        for (network, prefix) in [("10.0.0.0", 24), ("fd00::", 64), ("fe80::", 64)] {
            let found = link
                .routes
                .iter()
                .find(|r| (r.destination, r.prefix) == (ip(network), prefix));
            let route = found.unwrap_or_else(|| panic!("no route to {network}"));
            assert!(link.makes_itself(route), "{route:?}");
        }
        // an observation reports none of the kernel's own local, broadcast and multicast routes
        assert!(
            link.routes
                .iter()
                .all(|r| r.table != 255 && !r.destination.is_multicast())
        );
    });
}

#[test]
fn only_unicast_routes_by_one_netdev_are_shown() {
    node_with_addresses(|world| {
        world.ip("address add 10.9.0.5/24 dev wire0");
        world.ip(
            "route add 10.8.0.0/16 nexthop via 10.0.0.1 dev nic0 nexthop via 10.9.0.1 dev wire0",
        );
        world.ip("nexthop add id 7 via 10.0.0.1 dev nic0");
        world.ip("route add 10.7.0.0/16 nhid 7");
        world.ip("route add unreachable 10.6.0.0/16");
        world.ip("-6 route add blackhole fd06::/64 dev nic0");
        assert_eq!(seen(world), []);
    });
}

#[test]
fn the_kernels_sentence_reaches_the_error() {
    node_with_addresses(|world| {
        let route = Route {
            gateway: Some(ip("192.0.2.1")),
            ..Route::new(ip("10.9.0.0"), 16)
        };
        let error = world.refused(add(&route));
        assert_eq!(error.errno(), Some(libc::ENETUNREACH), "{error}");
        assert_eq!(
            error.message.as_deref(),
            Some("Nexthop has invalid gateway")
        );
        assert!(
            error
                .to_string()
                .contains("ip route append 10.9.0.0/16 via 192.0.2.1 dev nic0")
        );
    });
}
