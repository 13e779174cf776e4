// SPDX-License-Identifier: Apache-2.0
//! Tests of addresses that the kernel makes, and of duplicate addresses.

use crate::world::{World, interface, to_pod, with_node};
use rdma_netns::{Address, LinkChange, NetnsSide, Op};
use std::{
    net::IpAddr,
    thread::sleep,
    time::{Duration, Instant},
};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an IP address")
}

fn add(address: &Address) -> Op {
    Op::Link {
        at: NetnsSide::Host,
        link: interface("nic0"),
        change: LinkChange::AddAddress(address.clone()),
    }
}

/// Returns the addresses of `nic0` that the kernel did not make.
fn seen(world: &World) -> Vec<Address> {
    let link = world.host_link("nic0");
    link.addresses
        .into_iter()
        .filter(|address| !address.automatic)
        .collect()
}

#[test]
fn addresses_made_by_the_kernel() {
    with_node(|world| {
        world.ip("address add fd01::5/64 dev nic0");
        let link = world.host_link("nic0");
        let of = |text: &str| link.addresses.iter().find(|address| address.ip == ip(text));
        assert!(!of("fd01::5").expect("the address").automatic);
        let own = link
            .addresses
            .iter()
            .find(|address| address.is_link_local());
        assert!(own.expect("a link-local address").automatic);
        let lo = world.host_link("lo");
        assert!(
            lo.addresses
                .iter()
                .any(|address| address.ip == ip("::1") && address.automatic)
        );
    });
}

#[test]
fn temporary_addresses_are_seen() {
    with_node(|world| {
        world.ip("address add 10.1.0.5/24 dev nic0");
        // the bit of `IFA_F_TEMPORARY` means `IFA_F_SECONDARY` for IPv4: the address is not the first of its prefix
        world.ip("address add 10.1.0.6/24 dev nic0");
        let path = "/proc/sys/net/ipv6/conf/nic0/use_tempaddr";
        std::fs::write(path, "2").expect("the setting");
        world.ip("address add fd01::5/64 dev nic0 nodad mngtmpaddr");
        let link = world.host_link("nic0");
        let (temporary, others): (Vec<_>, Vec<_>) =
            link.addresses.iter().partition(|address| address.temporary);
        let [temporary] = temporary[..] else {
            panic!("not one temporary address: {link:?}");
        };
        assert!(temporary.automatic && temporary.ip != ip("fd01::5"));
        assert!(others.iter().any(|address| address.ip == ip("fd01::5")));
        assert!(others.iter().any(|address| address.ip == ip("10.1.0.6")));
    });
}

#[test]
fn a_duplicate_is_seen() {
    with_node(|world| {
        world.execute(to_pod("wire0", "wire0"));
        world.pod_ip("link set wire0 up");
        world.pod_ip("address add fd01::5/64 dev wire0 nodad");
        world.execute(add(&Address::new(ip("fd01::5"), 64)));
        let begin = Instant::now();
        while !seen(world)[0].dad_failed {
            assert!(begin.elapsed().as_secs() < 60, "{:?}", seen(world));
            sleep(Duration::from_millis(20));
        }
    });
}
