// SPDX-License-Identifier: Apache-2.0
//! Addresses and the routes that come with them.

use super::*;
use rdma_netns::{
    LinkFlag,
    link::{IFA_F_NODAD, IFA_F_NOPREFIXROUTE, IFA_F_OPTIMISTIC},
};

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

/// `optimistic_dad` is off unless somebody turns it on; then detection takes the flag away.
#[test]
fn optimistic_is_dropped_in_silence() {
    let (mut world, _) = addressed();
    for (setting, flags) in [(0, 0), (1, IFA_F_OPTIMISTIC)] {
        let text = format!("fd00:{setting}::6/64");
        for op in [
            Op::SetSysctl {
                at: AT,
                link: name("eth0"),
                key: "ipv6/optimistic_dad".to_owned(),
                value: setting,
            },
            with(&text, |address| address.flags = IFA_F_OPTIMISTIC),
        ] {
            make(&mut world, op);
        }
        let shown = |world: &World| {
            let link = host(world, "eth0");
            link.address(&address(&text)).unwrap().clone()
        };
        let added = shown(&world);
        assert!(added.tentative && added.flags == flags, "{added:?}");
        (0..world.detection).for_each(|_| world.pass_time());
        let detected = shown(&world);
        assert!(!detected.tentative && detected.flags == 0, "{detected:?}");
    }
}

/// Who is told what, and by whom not.
#[test]
fn an_announcement_has_the_hardware_address_of_now() {
    let (mut world, _) = addressed();
    let announce = |link: &str| Op::Announce {
        at: AT,
        link: name(link),
        address: address("10.0.0.5/24").ip,
    };
    make(&mut world, announce("eth0"));
    make(&mut world, announce("lo"));
    let mac = host(&world, "eth0").mac.clone();
    assert_eq!(world.announced, [(mac, address("10.0.0.5/24").ip)]);
    let no_arp = |on| Op::SetFlag {
        at: AT,
        link: name("eth0"),
        flag: LinkFlag::NoArp,
        on,
    };
    for changes in [vec![no_arp(true)], vec![no_arp(false), up("eth0", false)]] {
        changes.into_iter().for_each(|op| make(&mut world, op));
        make(&mut world, announce("eth0"));
        assert_eq!(world.announced.len(), 1);
    }
    assert_eq!(errno(&mut world, announce("eth7")), Errno::ENODEV);
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

#[test]
fn a_duplicate_is_found_and_cannot_be_used() {
    let (mut world, _) = exclusive();
    world.duplicates.push("fd00::5".parse().unwrap());
    make(&mut world, up("eth0", true));
    make(&mut world, add_address("eth0", "fd00::5/64"));
    make(&mut world, add_address("eth0", "fd00::6/64"));
    (0..world.detection).for_each(|_| world.pass_time());
    let state = |text: &str| {
        let link = host(&world, "eth0");
        let found = link.address(&address(text)).expect("an address");
        (found.tentative, found.dad_failed)
    };
    assert_eq!(state("fd00::5/64"), (true, true));
    assert_eq!(state("fd00::6/64"), (false, false));
}
