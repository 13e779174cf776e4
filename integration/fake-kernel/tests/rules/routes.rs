// SPDX-License-Identifier: Apache-2.0
//! Routes.

use super::*;

#[test]
fn a_gateway_has_to_be_on_the_link() {
    let (mut world, _) = addressed();
    make(&mut world, up("eth1", true));
    let cases = [
        ("10.9.0.0/16", "10.0.0.1", "10.3.0.1", Errno::ENETUNREACH),
        ("fd99::/64", "fd00::1", "fd03::1", Errno::EHOSTUNREACH),
    ];
    for (destination, near, far, expected) in cases {
        let via = |gateway| route(destination, Some(gateway));
        assert_eq!(errno(&mut world, add_route("eth0", via(far))), expected);
        // it is on another netdev's link
        assert_eq!(errno(&mut world, add_route("eth1", via(near))), expected);
        make(&mut world, add_route("eth0", via(near)));
        let onlink = Route {
            onlink: true,
            ..via(far)
        };
        make(&mut world, add_route("eth0", onlink));
    }
    make(
        &mut world,
        add_route("eth0", route("10.8.0.0/16", Some("fe80::1"))),
    );
}

#[test]
fn a_netdev_that_is_down_has_no_routes() {
    let (mut world, _) = exclusive();
    for destination in ["10.9.0.0/16", "fd99::/64"] {
        let refused = errno(&mut world, add_route("eth0", route(destination, None)));
        assert_eq!(refused, Errno::ENETDOWN);
    }
}

#[test]
fn one_s_own_address_is_no_gateway() {
    let (mut world, _) = addressed();
    let own = route("fd99::/64", Some("fd00::5"));
    assert_eq!(errno(&mut world, add_route("eth0", own)), Errno::EINVAL);
}

#[test]
fn a_source_has_to_be_an_address_that_is_usable() {
    let (mut world, _) = addressed();
    let from = |source: &str, destination| Route {
        source: source.parse().ok(),
        ..route(destination, None)
    };
    make(
        &mut world,
        add_route("eth0", from("10.0.0.5", "10.9.0.0/16")),
    );
    let missing = add_route("eth0", from("10.0.0.9", "10.8.0.0/16"));
    assert_eq!(errno(&mut world, missing), Errno::EINVAL);
    make(&mut world, add_address("eth0", "fd00::6/64"));
    let with_source = add_route("eth0", from("fd00::6", "fd99::/64"));
    assert_eq!(errno(&mut world, with_source.clone()), Errno::EINVAL);
    (0..world.detection).for_each(|_| world.pass_time());
    make(&mut world, with_source);
}

#[test]
fn a_route_that_is_there_is_added_in_peace() {
    let (mut world, _) = addressed();
    for _ in 0..2 {
        make(
            &mut world,
            add_route("eth0", route("10.9.0.0/16", Some("10.0.0.1"))),
        );
    }
    assert_eq!(host(&world, "eth0").routes.len(), 4);
    let gone = Op::RemoveRoute {
        at: AT,
        link: name("eth0"),
        route: route("10.9.0.0/16", Some("10.0.0.1")),
    };
    make(&mut world, gone.clone());
    assert_eq!(errno(&mut world, gone), Errno::ESRCH);
}

#[test]
fn the_default_metric_is_told_as_none() {
    let (mut world, _) = addressed();
    let metric = |metric, destination| Route {
        metric: Some(metric),
        ..route(destination, None)
    };
    make(&mut world, add_route("eth0", metric(0, "10.9.0.0/16")));
    make(&mut world, add_route("eth0", metric(1024, "fd99::/64")));
    let link = host(&world, "eth0");
    let lasting: Vec<Option<u32>> = link.lasting_routes().map(|route| route.metric).collect();
    assert_eq!(lasting, [None, None]);
}

/// Linux tells two IPv6 routes with one destination and metric as one with two next hops,
/// which `rdma_netns` takes apart again: each comes and goes for itself.
#[test]
fn ipv6_routes_of_two_netdevs_are_two() {
    let (mut world, _) = addressed();
    make(&mut world, up("eth1", true));
    make(&mut world, add_address("eth1", "fd01::5/64"));
    make(
        &mut world,
        add_route("eth0", route("::/0", Some("fd00::1"))),
    );
    make(
        &mut world,
        add_route("eth1", route("::/0", Some("fd01::1"))),
    );
    let lasting = |world: &World, link| host(world, link).lasting_routes().count();
    assert_eq!((lasting(&world, "eth0"), lasting(&world, "eth1")), (1, 1));
    make(&mut world, up("eth0", false));
    assert_eq!((lasting(&world, "eth0"), lasting(&world, "eth1")), (0, 1));
}
