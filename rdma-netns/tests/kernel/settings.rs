// SPDX-License-Identifier: Apache-2.0
//! Everything of a link that is not an address or a route.

use crate::world::{World, interface, to_host, to_pod, with_node};
use nix::libc;
use rdma_netns::{HardwareAddress, Link, LinkFlag, LinkSetting, NetnsSide, Op, link::SYSCTLS};
use std::{collections::BTreeMap, fs};

const FLAGS: [LinkFlag; 4] = [
    LinkFlag::Promisc,
    LinkFlag::AllMulti,
    LinkFlag::Multicast,
    LinkFlag::NoArp,
];

/// What takes `nic0` of the host from `now` to `wanted`, addresses and routes aside.
fn settings(world: &World, wanted: &Link) {
    let (at, link) = (NetnsSide::Host, interface("nic0"));
    let now = world.host_link("nic0");
    world.execute(Op::SetMtu {
        at,
        link: link.clone(),
        mtu: wanted.mtu,
    });
    world.execute(Op::SetMac {
        at,
        link: link.clone(),
        mac: wanted.mac.clone(),
    });
    let packets = wanted.tx_queue_len;
    world.execute(Op::SetTxQueueLen {
        at,
        link: link.clone(),
        packets,
    });
    for (setting, value) in &wanted.settings {
        world.execute(Op::SetLinkSetting {
            at,
            link: link.clone(),
            setting: *setting,
            value: *value,
        });
    }
    let alias = wanted.alias.clone().unwrap_or_default();
    world.execute(Op::SetAlias {
        at,
        link: link.clone(),
        alias,
    });
    for flag in FLAGS {
        world.execute(Op::SetFlag {
            at,
            link: link.clone(),
            flag,
            on: wanted.has(flag),
        });
    }
    for (names, others, present) in [
        (&now.alt_names, &wanted.alt_names, false),
        (&wanted.alt_names, &now.alt_names, true),
    ] {
        for name in names.iter().filter(|name| !others.contains(name)) {
            world.execute(Op::SetAltName {
                at,
                link: link.clone(),
                name: name.clone(),
                present,
            });
        }
    }
    world.execute(Op::SetUp {
        at,
        link: link.clone(),
        up: wanted.up,
    });
    for (key, value) in &wanted.sysctls {
        let (key, value) = (key.clone(), *value);
        world.execute(Op::SetSysctl {
            at,
            link: link.clone(),
            key,
            value,
        });
    }
}

fn bare(link: Link) -> Link {
    Link {
        addresses: Vec::new(),
        routes: Vec::new(),
        ..link
    }
}

#[test]
fn settings_round_trip_over_a_move() {
    with_node(|world| {
        let before = bare(world.host_link("nic0"));
        let mut sysctls = before.sysctls.clone();
        for (key, value) in [
            ("ipv4/rp_filter", 2),
            ("ipv4/arp_ignore", 1),
            ("ipv6/accept_ra", 0),
            ("ipv6/addr_gen_mode", 1),
            ("ipv6/use_tempaddr", -1),
        ] {
            assert!(
                sysctls.insert(key.to_owned(), value).is_some(),
                "{key} is not shown"
            );
        }
        let wanted = Link {
            mtu: 4200,
            mac: "02:00:00:00:00:07".parse().expect("a MAC"),
            tx_queue_len: 77,
            settings: BTreeMap::from([
                (LinkSetting::Mode, 1),
                (LinkSetting::Group, 7),
                (LinkSetting::GsoMaxSize, 20_000),
                (LinkSetting::GsoMaxSegments, 10),
            ]),
            alias: Some("rail 0, \u{e4}".to_owned()),
            flags: vec![LinkFlag::Promisc, LinkFlag::AllMulti, LinkFlag::NoArp],
            alt_names: vec![
                "enp59s0f0np0".to_owned(),
                "a-name-of-more-than-15-bytes".to_owned(),
            ],
            sysctls,
            ..before.clone()
        };
        settings(world, &wanted);
        assert_eq!(bare(world.host_link("nic0")), wanted);
        world.execute(to_pod("nic0", "rdma0"));
        world.execute(to_host("rdma0", "nic0"));
        assert_ne!(
            world.host_link("nic0").sysctls,
            wanted.sysctls,
            "the move resets them"
        );
        settings(world, &wanted);
        assert_eq!(bare(world.host_link("nic0")), wanted);
        settings(world, &before);
        assert_eq!(bare(world.host_link("nic0")), before);
    });
}

#[test]
fn every_flag_alone() {
    with_node(|world| {
        for flag in FLAGS {
            for on in [true, false, true] {
                world.execute(Op::SetFlag {
                    at: NetnsSide::Host,
                    link: interface("nic0"),
                    flag,
                    on,
                });
                assert_eq!(world.host_link("nic0").has(flag), on, "{flag:?}");
            }
        }
    });
}

/// What `/proc/sys` shows in the calling thread's namespace.
fn from_proc(link: &str) -> BTreeMap<String, i32> {
    let read = |key: &&str| {
        let (family, name) = key.split_once('/').expect("a key");
        let path = format!("/proc/sys/net/{family}/conf/{link}/{name}");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        (
            (*key).to_owned(),
            text.trim_end().parse().expect("a number"),
        )
    };
    SYSCTLS.iter().map(read).collect()
}

/// The index of each setting in `IFLA_AF_SPEC` is the one of its file: they are told
/// apart by changing one at a time.
#[test]
fn settings_are_those_of_proc() {
    with_node(|world| {
        let (at, link) = (NetnsSide::Host, interface("nic0"));
        for (number, key) in SYSCTLS.into_iter().enumerate() {
            let before = world.host_link("nic0").sysctls;
            assert_eq!(before, from_proc("nic0"));
            let value = i32::from(before[key] == 0);
            world.execute(Op::SetSysctl {
                at,
                link: link.clone(),
                key: key.to_owned(),
                value,
            });
            let after = world.host_link("nic0").sysctls;
            assert_eq!(after[key], value, "{key}, number {number}");
            assert_eq!(after, from_proc("nic0"), "after {key}");
        }
    });
}

#[test]
fn a_setting_is_the_pods_own() {
    with_node(|world| {
        world.execute(to_pod("nic0", "wire0"));
        let key = "ipv6/accept_ra".to_owned();
        let before = world.host_link("wire0").sysctls;
        world.execute(Op::SetSysctl {
            at: NetnsSide::Pod,
            link: interface("wire0"),
            key,
            value: 2,
        });
        assert_eq!(world.pod_link("wire0").sysctls["ipv6/accept_ra"], 2);
        assert_eq!(world.host_link("wire0").sysctls, before);
        let inside = world
            .pod
            .netns()
            .run(|| from_proc("wire0"))
            .expect("to enter");
        assert_eq!(inside["ipv6/accept_ra"], 2);
    });
}

#[test]
fn a_link_with_too_small_an_mtu_has_no_ipv6() {
    with_node(|world| {
        world.execute(Op::SetMtu {
            at: NetnsSide::Host,
            link: interface("nic0"),
            mtu: 1000,
        });
        let link = world.host_link("nic0");
        assert!(
            link.sysctls.keys().all(|key| key.starts_with("ipv4/")),
            "{:?}",
            link.sysctls
        );
        assert!(!link.sysctls.is_empty());
    });
}

#[test]
fn refusals_name_what_was_wrong() {
    with_node(|world| {
        let (at, link) = (NetnsSide::Host, interface("nic0"));
        let error = world.refused(Op::SetMtu {
            at,
            link: link.clone(),
            mtu: 1,
        });
        assert_eq!(error.errno(), Some(libc::EINVAL));
        assert_eq!(
            error.message.as_deref(),
            Some("mtu less than device minimum")
        );
        let mac = HardwareAddress(vec![1, 0, 0, 0, 0, 1]); // a multicast address
        let error = world.refused(Op::SetMac {
            at,
            link: link.clone(),
            mac,
        });
        assert_eq!(error.errno(), Some(libc::EADDRNOTAVAIL), "{error}");
        let name = "wire0".to_owned();
        let error = world.refused(Op::SetAltName {
            at,
            link,
            name,
            present: true,
        });
        assert_eq!(error.errno(), Some(libc::EEXIST), "{error}");
        let key = "ipv6/accept_ra".to_owned();
        let error = world.refused(Op::SetSysctl {
            at,
            link: interface("none"),
            key,
            value: 1,
        });
        assert_eq!(error.errno(), Some(libc::ENOENT), "{error}");
    });
}
