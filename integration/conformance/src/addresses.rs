// SPDX-License-Identifier: Apache-2.0
//! IP addresses, and the prefix routes that the kernel adds with them.

use crate::{Node, ops::*};
use nix::errno::Errno;
use rdma_netns::{
    Address, Kernel, Route,
    link::{IFA_F_NODAD, IFA_F_NOPREFIXROUTE},
};

/// The kernel orders IPv6 addresses by scope, and within a scope the newest comes first (`ipv6_link_dev_addr()`,
/// `net/ipv6/addrconf.c`).
pub fn the_newest_ipv6_address_stands_first(node: &Node<'_, impl Kernel>) {
    node.addressed();
    for text in ["fe80::7/64", "fd00::6/64", "10.0.0.6/24", "fd00:1::7/64"] {
        node.make(add("nic0", address(text)));
    }
    let v6 = ["fd00:1::7/64", "fd00::6/64", "fd00::5/64", "fe80::7/64"];
    let expected = [["10.0.0.5/24", "10.0.0.6/24"].as_slice(), &v6].concat();
    assert_eq!(texts(&node.host("nic0")), expected);
}

/// The kernel lists a primary of link scope before primaries of global scope, and secondaries last
/// (`__inet_insert_ifa()`, `net/ipv4/devinet.c`).
pub fn ipv4_primaries_stand_before_secondaries(node: &Node<'_, impl Kernel>) {
    node.addressed();
    node.make(add("nic0", address("10.0.0.6/24")));
    node.make(add("nic0", address("10.1.0.5/24")));
    let of_the_link = Address {
        scope: 253,
        ..address("10.2.0.5/24")
    };
    node.make(add("nic0", of_the_link));
    let expected = ["10.2.0.5/24", "10.0.0.5/24", "10.1.0.5/24", "10.0.0.6/24"];
    assert_eq!(texts(&node.host("nic0"))[..4], expected);
}

/// The kernel ignores a changed scope (`inet_rtm_newaddr()`, `net/ipv4/devinet.c`).
pub fn replacing_an_ipv4_address_changes_metric_and_lifetime_only(node: &Node<'_, impl Kernel>) {
    node.addressed();
    let changed = Address {
        metric: Some(77),
        scope: 253,
        lifetime: Some((3600, 1800)),
        ..address("10.0.0.5/24")
    };
    node.make(add("nic0", changed));
    let link = node.host("nic0");
    let replaced = &link.addresses[0];
    assert_eq!((replaced.metric, replaced.scope), (Some(77), 0));
    let (valid, preferred) = replaced.lifetime.expect("a lifetime");
    assert!((3590..=3600).contains(&valid) && (1790..=1800).contains(&preferred));
    assert_eq!(link.routes[0].metric, Some(77));
}

/// An address with `IFA_F_NOPREFIXROUTE` has no prefix route, and neither has an IPv4 address with prefix length 32 and
/// no peer. An IPv6 address with prefix length 128 has one.
pub fn prefix_routes_come_and_go_with_addresses(node: &Node<'_, impl Kernel>) {
    node.addressed();
    let before = destinations(&node.host("nic0"));
    assert_eq!(before, ["10.0.0.0/24", "fd00::/64"]);
    let without = Address {
        flags: IFA_F_NOPREFIXROUTE,
        ..address("fd00:7::1/64")
    };
    node.make(add("nic0", without));
    node.make(add("nic0", address("10.8.0.1/32")));
    assert_eq!(destinations(&node.host("nic0")), before);
    node.make(add("nic0", address("fd00:8::1/128")));
    assert_eq!(node.host("nic0").routes.len(), 3);
    for text in ["10.0.0.5/24", "fd00::5/64", "fd00:8::1/128"] {
        node.make(remove("nic0", address(text)));
    }
    assert_eq!(node.host("nic0").routes, []);
}

/// The prefix route of an address with a peer leads to the peer, and not to the address's own network.
pub fn a_peer_has_the_prefix_route(node: &Node<'_, impl Kernel>) {
    node.addressed();
    let with_peer = Address {
        peer: Some(ip("10.4.0.2")),
        ..address("10.4.0.1/32")
    };
    node.make(add("nic0", with_peer));
    let routes = destinations(&node.host("nic0"));
    assert!(routes.contains(&"10.4.0.2/32".to_owned()), "{routes:?}");
}

/// Removing an IPv4 primary removes its secondaries, unless `promote_secondaries` is set (`__inet_del_ifa()`,
/// `net/ipv4/devinet.c`).
pub fn an_ipv4_primary_takes_its_secondaries_along(node: &Node<'_, impl Kernel>) {
    node.addressed();
    node.make(add("nic0", address("10.0.0.6/24")));
    node.make(remove("nic0", address("10.0.0.5/24")));
    assert_eq!(texts(&node.host("nic0")), ["fd00::5/64"]);
}

/// With the last IPv4 address, the kernel removes the netdev's IPv4 routes of all tables, also routes with an IPv6
/// gateway (`fib_disable_ip()`, `net/ipv4/fib_frontend.c`). A primary and its secondaries are removed together.
pub fn the_last_ipv4_address_takes_all_ipv4_routes_along(node: &Node<'_, impl Kernel>) {
    node.addressed();
    let by_table = Route {
        table: 1001,
        ..route("10.7.0.0/16", None)
    };
    let ipv4 = [
        by_table,
        route("10.8.0.0/16", Some("10.0.0.1")),
        route("10.9.0.0/16", Some("fd00::1")),
    ];
    let ipv6 = route("fd99::/64", Some("fd00::1"));
    for route in ipv4.iter().chain([&ipv6]) {
        node.make(add_route("nic0", route.clone()));
    }
    node.make(add("nic0", address("10.1.0.5/24")));
    node.make(remove("nic0", address("10.0.0.5/24")));
    assert_eq!(node.host("nic0").lasting_routes().count(), 4);
    node.make(add("nic0", address("10.1.0.6/24")));
    node.make(remove("nic0", address("10.1.0.5/24")));
    let link = node.host("nic0");
    assert_eq!(link.lasting_routes().collect::<Vec<_>>(), [&ipv6]);
}

/// The prefix routes of both families get the metric of their address.
pub fn a_metric_is_that_of_the_prefix_route(node: &Node<'_, impl Kernel>) {
    node.make(up("nic0", true));
    for (text, network) in [("10.1.0.5/24", "10.1.0.0"), ("fd01::5/64", "fd01::")] {
        let wanted = Address {
            metric: Some(300),
            flags: if text.contains(':') { IFA_F_NODAD } else { 0 },
            ..address(text)
        };
        node.make(add("nic0", wanted.clone()));
        let link = node.host("nic0");
        assert_eq!(link.address(&wanted), Some(&wanted));
        let mut routes = link.routes.iter();
        let route = routes.find(|it| it.destination == ip(network));
        assert_eq!(route.expect("a prefix route").metric, Some(300));
    }
}

/// The kernel reports an added address with all attributes. Adding it again changes nothing. An address that was
/// removed and added again is reported as before.
pub fn what_was_added_is_seen(node: &Node<'_, impl Kernel>) {
    node.make(up("nic0", true));
    let wanted = [
        address("10.1.0.5/24"),
        Address {
            broadcast: Some(ip("10.2.0.255")),
            ..address("10.2.0.5/24")
        },
        Address {
            peer: Some(ip("10.3.0.1")),
            ..address("10.3.0.5/32")
        },
        Address {
            label: Some("nic0:a".to_owned()),
            ..address("10.4.0.5/24")
        },
        Address {
            metric: Some(300),
            scope: 253,
            ..address("10.5.0.5/24")
        },
        Address {
            flags: IFA_F_NOPREFIXROUTE,
            ..address("10.6.0.5/24")
        },
        nodad("fd01::5/64"),
        Address {
            flags: IFA_F_NODAD | IFA_F_NOPREFIXROUTE,
            metric: Some(300),
            ..address("fd02::5/64")
        },
        Address {
            peer: Some(ip("fd03::1")),
            ..nodad("fd03::5/128")
        },
        Address {
            scope: 253,
            ..nodad("fe80::77/64")
        },
    ];
    let seen = || -> Vec<Address> {
        let addresses = node.host("nic0").addresses.into_iter();
        let mut given: Vec<_> = addresses.filter(|it| !it.automatic).collect();
        given.sort_by_key(|it| it.ip);
        given
    };
    let all = |op: &dyn Fn(&str, Address) -> rdma_netns::Op| {
        for address in &wanted {
            node.make(op("nic0", address.clone()));
        }
    };
    all(&|link, address| add(link, address));
    assert_eq!(seen(), wanted);
    all(&|link, address| add(link, address));
    assert_eq!(seen(), wanted);
    all(&|link, address| remove(link, address));
    assert_eq!(seen(), []);
    all(&|link, address| add(link, address));
    assert_eq!(seen(), wanted);
}

/// The kernel reports the remaining lifetimes.
pub fn lifetimes_are_seen(node: &Node<'_, impl Kernel>) {
    for text in ["10.1.0.5/24", "fd01::5/64"] {
        let limited = Address {
            lifetime: Some((3600, 1800)),
            flags: if text.contains(':') { IFA_F_NODAD } else { 0 },
            ..address(text)
        };
        node.make(add("nic0", limited.clone()));
        let link = node.host("nic0");
        let (valid, preferred) = link
            .address(&limited)
            .and_then(|it| it.lifetime)
            .expect("one");
        assert!((3590..=3600).contains(&valid) && (1790..=1800).contains(&preferred));
    }
}

/// The kernel refuses to remove a missing address of either family.
pub fn an_address_that_is_not_there_cannot_be_taken_away(node: &Node<'_, impl Kernel>) {
    for text in ["10.1.0.5/24", "fd01::5/64"] {
        let refused = node.refused(remove("nic0", address(text)));
        assert_eq!(refused, Errno::EADDRNOTAVAIL, "{text}");
    }
}
