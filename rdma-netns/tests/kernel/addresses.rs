// SPDX-License-Identifier: Apache-2.0
//! Addresses: shown as they are, and the same after they were set again.

use crate::world::{World, interface, to_pod, with_node};
use nix::libc;
use rdma_netns::{Address, NetnsSide, Op, link};
use std::{
    net::IpAddr,
    thread::sleep,
    time::{Duration, Instant},
};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an IP address")
}

fn add(address: &Address) -> Op {
    Op::AddAddress {
        at: NetnsSide::Host,
        link: interface("nic0"),
        address: address.clone(),
    }
}

fn remove(address: &Address) -> Op {
    Op::RemoveAddress {
        at: NetnsSide::Host,
        link: interface("nic0"),
        address: address.clone(),
    }
}

/// The addresses of `nic0` that the kernel did not make.
fn seen(world: &World) -> Vec<Address> {
    let link = world.host_link("nic0");
    link.addresses
        .into_iter()
        .filter(|address| !address.automatic)
        .collect()
}

#[test]
fn addresses_round_trip() {
    with_node(|world| {
        let wanted = [
            Address::new(ip("10.1.0.5"), 24),
            Address {
                broadcast: Some(ip("10.2.0.255")),
                ..Address::new(ip("10.2.0.5"), 24)
            },
            Address {
                peer: Some(ip("10.3.0.1")),
                ..Address::new(ip("10.3.0.5"), 32)
            },
            Address {
                label: Some("nic0:a".to_owned()),
                ..Address::new(ip("10.4.0.5"), 24)
            },
            Address {
                metric: Some(300),
                scope: 253,
                ..Address::new(ip("10.5.0.5"), 24)
            },
            Address {
                flags: link::IFA_F_NOPREFIXROUTE,
                ..Address::new(ip("10.6.0.5"), 24)
            },
            Address {
                flags: link::IFA_F_NODAD,
                ..Address::new(ip("fd01::5"), 64)
            },
            Address {
                flags: link::IFA_F_NODAD | link::IFA_F_NOPREFIXROUTE,
                metric: Some(300),
                ..Address::new(ip("fd02::5"), 64)
            },
            Address {
                flags: link::IFA_F_NODAD,
                peer: Some(ip("fd03::1")),
                ..Address::new(ip("fd03::5"), 128)
            },
            Address {
                flags: link::IFA_F_NODAD,
                scope: 253,
                ..Address::new(ip("fe80::77"), 64)
            },
        ];
        for address in &wanted {
            world.execute(add(address));
        }
        let observed = seen(world);
        for address in &wanted {
            let found = observed.iter().find(|found| found.same_as(address));
            assert_eq!(found, Some(address));
        }
        assert_eq!(observed.len(), wanted.len());
        // Set again over itself, and again after it was taken away.
        for address in &observed {
            world.execute(add(address));
        }
        assert_eq!(seen(world), observed);
        for address in &observed {
            world.execute(remove(address));
        }
        assert_eq!(seen(world), []);
        for address in &observed {
            world.execute(add(address));
        }
        let mut again = seen(world);
        let mut observed = observed;
        observed.sort_by_key(|address| address.ip);
        again.sort_by_key(|address| address.ip);
        assert_eq!(again, observed);
    });
}

#[test]
fn lifetimes_are_kept() {
    with_node(|world| {
        for (text, prefix) in [("10.1.0.5", 24), ("fd01::5", 64)] {
            let lifetime = Some((3600, 1800));
            let flags = link::IFA_F_NODAD;
            let address = Address {
                lifetime,
                flags,
                ..Address::new(ip(text), prefix)
            };
            world.execute(add(&address));
            let (valid, preferred) = seen(world)[0].lifetime.expect("a lifetime");
            assert!((3590..=3600).contains(&valid) && (1790..=1800).contains(&preferred));
            world.execute(remove(&address));
        }
    });
}

#[test]
fn what_the_kernel_made_itself() {
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
        // with IPv4 the same bit says that it is not the first of its prefix
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
fn duplicate_detection_is_seen() {
    with_node(|world| {
        world.execute(add(&Address::new(ip("fd01::5"), 64)));
        assert!(seen(world)[0].tentative);
        let nodad = Address {
            flags: link::IFA_F_NODAD,
            ..Address::new(ip("fd02::5"), 64)
        };
        world.execute(add(&nodad));
        assert!(
            !seen(world)
                .iter()
                .any(|found| found.same_as(&nodad) && found.tentative)
        );
    });
}

#[test]
fn an_address_that_is_not_there_cannot_be_taken_away() {
    with_node(|world| {
        let error = world.refused(remove(&Address::new(ip("10.1.0.5"), 24)));
        assert_eq!(error.errno(), Some(libc::EADDRNOTAVAIL), "{error}");
    });
}

#[test]
fn a_metric_is_that_of_the_prefix_route() {
    with_node(|world| {
        for (text, network, prefix, flags) in [
            ("10.1.0.5", "10.1.0.0", 24, 0),
            ("fd01::5", "fd01::", 64, link::IFA_F_NODAD),
        ] {
            let address = Address {
                metric: Some(300),
                flags,
                ..Address::new(ip(text), prefix)
            };
            world.execute(add(&address));
            let link = world.host_link("nic0");
            assert_eq!(link.address(&address), Some(&address));
            let mut routes = link.routes.iter();
            let route = routes.find(|r| (r.destination, r.prefix) == (ip(network), prefix));
            assert_eq!(route.expect("a prefix route").metric, Some(300));
        }
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
            assert!(begin.elapsed().as_secs() < 10, "{:?}", seen(world));
            sleep(Duration::from_millis(20));
        }
    });
}
