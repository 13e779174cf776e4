// SPDX-License-Identifier: Apache-2.0
//! IP addresses and their prefix routes.

use super::*;
use rdma_netns::{LinkFlag, link::IFA_F_NODAD};

fn with(text: &str, change: impl FnOnce(&mut Address)) -> Op {
    let mut address = address(text);
    change(&mut address);
    let link = name("eth0");
    Op::Link {
        at: AT,
        link,
        change: LinkChange::AddAddress(address),
    }
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
        Op::Link {
            at: AT,
            link,
            change: LinkChange::Sysctl { key, value },
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

/// An announcement has the netdev's present hardware address. A netdev that is down or does not use neighbour discovery
/// sends none.
#[test]
fn an_announcement_has_the_hardware_address_of_now() {
    let (mut world, _) = addressed();
    let announce = |link: &str| Op::Link {
        at: AT,
        link: name(link),
        change: LinkChange::Announce(address("10.0.0.5/24").ip),
    };
    make(&mut world, announce("eth0"));
    make(&mut world, announce("lo"));
    let mac = host(&world, "eth0").mac.clone();
    assert_eq!(world.announced, [(mac, address("10.0.0.5/24").ip)]);
    let no_arp = |on| Op::Link {
        at: AT,
        link: name("eth0"),
        change: LinkChange::Flag(LinkFlag::NoArp, on),
    };
    for changes in [vec![no_arp(true)], vec![no_arp(false), up("eth0", false)]] {
        changes.into_iter().for_each(|op| make(&mut world, op));
        make(&mut world, announce("eth0"));
        assert_eq!(world.announced.len(), 1);
    }
    assert_eq!(errno(&mut world, announce("eth7")), Errno::ENODEV);
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
