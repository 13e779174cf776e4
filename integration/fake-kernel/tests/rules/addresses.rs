//! Addresses and the routes that come with them.

use super::*;
use rdma_netns::link::{IFA_F_NODAD, IFA_F_NOPREFIXROUTE, IFA_F_OPTIMISTIC};

fn with(text: &str, change: impl FnOnce(&mut Address)) -> Op {
    let mut address = address(text);
    change(&mut address);
    let link = name("eth0");
    Op::AddAddress {
        at: AT,
        link,
        address,
    }
}

fn remove(text: &str) -> Op {
    let (link, address) = (name("eth0"), address(text));
    Op::RemoveAddress {
        at: AT,
        link,
        address,
    }
}

#[test]
fn up_makes_the_link_local_address() {
    let (mut world, _) = exclusive();
    make(&mut world, up("eth0", true));
    let link = host(&world, "eth0");
    assert_eq!(texts(link), ["fe80::ff:fe00:2/64"]);
    assert!(link.addresses[0].automatic && link.addresses[0].tentative);
    assert_eq!(link.addresses[0].scope, 253);
    assert_eq!(destinations(link), ["fe80::/64"]);
}

#[test]
fn there_is_no_link_local_address_where_none_is_wanted() {
    let (mut world, _) = exclusive();
    let (link, key) = (name("eth0"), "ipv6/addr_gen_mode".to_owned());
    let value = 1;
    make(
        &mut world,
        Op::SetSysctl {
            at: AT,
            link,
            key,
            value,
        },
    );
    make(&mut world, up("eth0", true));
    assert!(host(&world, "eth0").addresses.is_empty());
}

#[test]
fn the_newest_ipv6_address_stands_first() {
    let (mut world, _) = addressed();
    for text in ["fd00::6/64", "10.0.0.6/24", "fd00:1::7/64"] {
        make(&mut world, add_address("eth0", text));
    }
    assert_eq!(
        texts(host(&world, "eth0")),
        [
            "10.0.0.5/24",
            "10.0.0.6/24",
            "fd00:1::7/64",
            "fd00::6/64",
            "fd00::5/64",
            "fe80::ff:fe00:2/64"
        ]
    );
}

#[test]
fn ipv4_primaries_stand_before_secondaries() {
    let (mut world, _) = addressed();
    make(&mut world, add_address("eth0", "10.0.0.6/24"));
    make(&mut world, add_address("eth0", "10.1.0.5/24"));
    make(
        &mut world,
        with("10.2.0.5/24", |address| address.scope = 253),
    );
    let expected = ["10.2.0.5/24", "10.0.0.5/24", "10.1.0.5/24", "10.0.0.6/24"];
    assert_eq!(texts(host(&world, "eth0"))[..4], expected);
}

#[test]
fn detection_takes_its_time() {
    let (mut world, _) = addressed();
    make(&mut world, add_address("eth0", "fd00::6/64"));
    make(
        &mut world,
        with("fd00::7/64", |address| address.flags = IFA_F_NODAD),
    );
    let tentative = |world: &World| -> Vec<String> {
        let pending = host(world, "eth0").addresses.iter().filter(|a| a.tentative);
        pending.map(|address| address.ip.to_string()).collect()
    };
    assert_eq!(tentative(&world), ["fd00::6"]);
    (1..world.detection).for_each(|_| world.pass_time());
    assert_eq!(tentative(&world), ["fd00::6"]);
    world.pass_time();
    assert_eq!(tentative(&world), [] as [&str; 0]);
}

#[test]
fn without_accept_dad_there_is_no_detection() {
    let (mut world, _) = exclusive();
    let (link, key) = (name("eth0"), "ipv6/accept_dad".to_owned());
    let value = 0;
    make(
        &mut world,
        Op::SetSysctl {
            at: AT,
            link,
            key,
            value,
        },
    );
    make(&mut world, up("eth0", true));
    make(&mut world, add_address("eth0", "fd00::6/64"));
    assert!(
        host(&world, "eth0")
            .addresses
            .iter()
            .all(|address| !address.tentative)
    );
}

/// `optimistic_dad` is off unless somebody turns it on.
#[test]
fn optimistic_is_dropped_in_silence() {
    let (mut world, _) = addressed();
    make(
        &mut world,
        with("fd00::6/64", |address| address.flags = IFA_F_OPTIMISTIC),
    );
    let link = host(&world, "eth0");
    let added = link.address(&address("fd00::6/64")).unwrap();
    assert!(added.tentative && added.flags == 0, "{added:?}");
}

#[test]
fn replacing_nodad_by_nothing_starts_no_detection() {
    let (mut world, _) = addressed();
    make(
        &mut world,
        with("fd00::6/64", |address| address.flags = IFA_F_NODAD),
    );
    make(&mut world, add_address("eth0", "fd00::6/64"));
    let link = host(&world, "eth0");
    let added = link.address(&address("fd00::6/64")).unwrap();
    assert!(!added.tentative && added.flags == 0, "{added:?}");
}

#[test]
fn replacing_an_ipv4_address_changes_metric_and_lifetime_only() {
    let (mut world, _) = addressed();
    make(
        &mut world,
        with("10.0.0.5/24", |address| {
            address.metric = Some(77);
            address.scope = 253;
        }),
    );
    let link = host(&world, "eth0");
    assert_eq!(
        (link.addresses[0].metric, link.addresses[0].scope),
        (Some(77), 0)
    );
    assert_eq!(link.routes[0].metric, Some(77));
}

#[test]
fn prefix_routes_come_and_go_with_addresses() {
    let (mut world, _) = addressed();
    let before = destinations(host(&world, "eth0"));
    assert_eq!(before, ["10.0.0.0/24", "fd00::/64", "fe80::/64"]);
    let special = with("fd00:7::1/64", |address| {
        address.flags = IFA_F_NOPREFIXROUTE
    });
    make(&mut world, special);
    // an IPv4 host address has none, an IPv6 one has
    make(&mut world, add_address("eth0", "10.8.0.1/32"));
    assert_eq!(destinations(host(&world, "eth0")), before);
    make(&mut world, add_address("eth0", "fd00:8::1/128"));
    assert_eq!(host(&world, "eth0").routes.len(), 4);
    make(&mut world, remove("10.0.0.5/24"));
    make(&mut world, remove("fd00::5/64"));
    make(&mut world, remove("fd00:8::1/128"));
    assert_eq!(destinations(host(&world, "eth0")), ["fe80::/64"]);
    assert_eq!(
        errno(&mut world, remove("fd00::5/64")),
        Errno::EADDRNOTAVAIL
    );
}

#[test]
fn a_peer_has_the_prefix_route() {
    let (mut world, _) = addressed();
    make(
        &mut world,
        with("10.4.0.1/32", |a| a.peer = "10.4.0.2".parse().ok()),
    );
    assert!(destinations(host(&world, "eth0")).contains(&"10.4.0.2/32".to_owned()));
}

#[test]
fn an_ipv4_primary_takes_its_secondaries_along() {
    let (mut world, _) = addressed();
    make(&mut world, add_address("eth0", "10.0.0.6/24"));
    make(&mut world, remove("10.0.0.5/24"));
    assert_eq!(
        texts(host(&world, "eth0")),
        ["fd00::5/64", "fe80::ff:fe00:2/64"]
    );
}

#[test]
fn an_address_that_was_set_while_down_works_once_up() {
    let (mut world, _) = exclusive();
    make(&mut world, add_address("eth0", "fd00::5/64"));
    make(&mut world, add_address("eth0", "10.0.0.5/24"));
    assert!(host(&world, "eth0").routes.is_empty());
    make(&mut world, up("eth0", true));
    let link = host(&world, "eth0");
    assert_eq!(
        destinations(link),
        ["10.0.0.0/24", "fd00::/64", "fe80::/64"]
    );
    (0..world.detection).for_each(|_| world.pass_time());
    assert!(
        host(&world, "eth0")
            .addresses
            .iter()
            .all(|address| !address.tentative)
    );
}
