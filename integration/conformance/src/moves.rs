// SPDX-License-Identifier: Apache-2.0
//! Moves of netdevs to the pod and back (`__dev_change_net_namespace()`, `net/core/dev.c`).

use crate::{Node, ops::*};
use nix::errno::Errno;
use rdma_netns::{Kernel, Link, LinkChange, LinkFlag, LinkSetting, Op};

/// Returns the part of `link` that a move keeps.
fn kept(link: Link) -> Link {
    Link {
        carrier: false,
        up: false,
        addresses: vec![],
        routes: vec![],
        sysctls: Default::default(),
        ..link
    }
}

/// A move sets the netdev down, and removes its addresses and routes.
pub fn a_move_drops_addresses_routes_and_up(node: &Node<'_, impl Kernel>) {
    node.make(up("nic0", true));
    node.make(add("nic0", address("10.0.0.5/24")));
    node.make(add("nic0", nodad("fd00::5/64")));
    node.make(into_pod("nic0", "rdma0"));
    let link = node.pod("rdma0");
    assert!(!link.up && link.addresses.is_empty() && link.routes.is_empty());
    assert!(node.observe().host.link("nic0").is_none());
    node.make(to_host("rdma0", "nic0"));
    assert!(!node.host("nic0").up && node.pod_has("rdma0").is_none());
}

/// In the new namespace the netdev gets a new `in_device` and `inet6_dev`, with the settings of the namespace's
/// `default`.
pub fn a_move_resets_settings_to_those_of_the_namespace(node: &Node<'_, impl Kernel>) {
    node.make(into_pod("nic0", "nic0"));
    node.make(to_host("nic0", "nic0"));
    let before = node.host("nic0").sysctls;
    for (key, value) in [("ipv6/accept_ra", 0), ("ipv4/arp_ignore", 1)] {
        assert_ne!(before.get(key), Some(&value), "{key}");
        node.make(sysctl("nic0", key, value));
        assert_eq!(node.host("nic0").sysctls.get(key), Some(&value), "{key}");
    }
    node.make(into_pod("nic0", "nic0"));
    let moved = node.pod("nic0").sysctls;
    assert_eq!(moved.get("ipv6/accept_ra"), Some(&1));
    assert_eq!(moved.get("ipv4/arp_ignore"), Some(&0));
    node.make(to_host("nic0", "nic0"));
    assert_eq!(node.host("nic0").sysctls, before);
}

/// Sets the attributes of the host's `nic0` to those of `wanted`, without addresses and routes.
fn set(node: &Node<'_, impl Kernel>, wanted: &Link) {
    let (at, link) = (HOST, || name("nic0"));
    let now = node.host("nic0");
    node.make(mtu(at, "nic0", wanted.mtu));
    let mac = wanted.mac.clone();
    node.make(Op::Link {
        at,
        link: link(),
        change: LinkChange::Mac(mac),
    });
    let packets = wanted.tx_queue_len;
    node.make(Op::Link {
        at,
        link: link(),
        change: LinkChange::TxQueueLen(packets),
    });
    for (&setting, &value) in &wanted.settings {
        node.make(Op::Link {
            at,
            link: link(),
            change: LinkChange::Setting(setting, value),
        });
    }
    let alias = wanted.alias.clone().unwrap_or_default();
    node.make(Op::Link {
        at,
        link: link(),
        change: LinkChange::Alias(alias),
    });
    for each in LinkFlag::ALL {
        node.make(flag("nic0", each, wanted.has(each)));
    }
    for (names, others, present) in [
        (&now.alt_names, &wanted.alt_names, false),
        (&wanted.alt_names, &now.alt_names, true),
    ] {
        for name in names.iter().filter(|name| !others.contains(name)) {
            node.make(alt_name("nic0", name, present));
        }
    }
    node.make(up("nic0", wanted.up));
    for (key, value) in wanted.sysctls.iter() {
        node.make(sysctl("nic0", key, value));
    }
}

/// A move to the pod and back resets only the state (up or down), addresses, routes and sysctls. State and sysctls can
/// be set again. The index stays the same if it is free.
pub fn a_move_keeps_the_other_things(node: &Node<'_, impl Kernel>) {
    let bare = |link: Link| Link {
        addresses: vec![],
        routes: vec![],
        ..link
    };
    node.up("nic0");
    let before = bare(node.host("nic0"));
    let mut sysctls = before.sysctls.clone();
    for (key, value) in [
        ("ipv4/rp_filter", 1),
        ("ipv4/arp_ignore", 1),
        ("ipv6/accept_ra", 0),
        ("ipv6/addr_gen_mode", 1),
        ("ipv6/use_tempaddr", -1),
    ] {
        assert!(sysctls.insert(key.into(), value).is_some(), "{key}");
    }
    let mut settings = before.settings.clone();
    for (setting, value) in [
        (LinkSetting::Mode, 1),
        (LinkSetting::Group, 7),
        (LinkSetting::GsoMaxSize, 20_000),
        (LinkSetting::GsoMaxSegments, 10),
        (LinkSetting::GroMaxSize, 30_000),
        (LinkSetting::GsoIpv4MaxSize, 40_000),
        (LinkSetting::GroIpv4MaxSize, 50_000),
    ] {
        // an older kernel lacks some of these settings
        settings.entry(setting).and_modify(|it| *it = value);
    }
    let wanted = Link {
        mtu: 4200,
        mac: "02:00:00:00:00:77".parse().expect("a MAC"),
        tx_queue_len: 77,
        settings,
        alias: Some("rail 0, \u{e4}".to_owned()),
        flags: LinkFlag::ALL
            .into_iter()
            .filter(|it| *it != LinkFlag::Multicast)
            .collect(),
        alt_names: vec![
            "enp59s0f0np0".to_owned(),
            "a-name-of-more-than-15-bytes".to_owned(),
            "\0no UTF-8: \u{ff}\u{fe}".to_owned(),
        ],
        sysctls,
        ..before.clone()
    };
    set(node, &wanted);
    assert_eq!(bare(node.host("nic0")), wanted);
    node.make(into_pod("nic0", "rdma0"));
    let moved = Link {
        name: name("nic0"),
        ..node.pod("rdma0")
    };
    assert_eq!(kept(moved), kept(wanted.clone()));
    node.make(to_host("rdma0", "nic0"));
    assert_ne!(node.host("nic0").sysctls, wanted.sysctls);
    set(node, &wanted);
    assert_eq!(bare(node.host("nic0")), wanted);
    set(node, &before);
    assert_eq!(bare(node.host("nic0")), before);
}

/// The kernel refuses the move, and the netdev stays on the host, up and with its index.
pub fn a_name_that_is_taken_stops_a_move(node: &Node<'_, impl Kernel>) {
    node.make(alt_name("nic1", "rail", true));
    node.make(into_pod("nic1", "rdma0"));
    node.make(up("nic0", true));
    let before = node.host("nic0");
    for taken in ["rdma0", "rail"] {
        assert_eq!(node.refused(into_pod("nic0", taken)), Errno::EEXIST);
    }
    let after = node.host("nic0");
    assert_eq!((after.up, after.index), (true, before.index));
}

/// The netdev takes its own alternative names along, and these must be free too.
pub fn an_alternative_name_that_is_taken_stops_a_move(node: &Node<'_, impl Kernel>) {
    node.make(alt_name("nic0", "x", true));
    node.make(into_pod("nic0", "rdma0"));
    node.make(alt_name("nic1", "x", true));
    assert_eq!(node.refused(to_host("rdma0", "nic0")), Errno::EEXIST);
}

/// In the new namespace the netdev has its new name from the beginning.
pub fn the_old_name_may_be_taken_where_it_goes(node: &Node<'_, impl Kernel>) {
    let mac = node.host("nic0").mac;
    node.make(into_pod("nic1", "nic0"));
    node.make(into_pod("nic0", "rdma0"));
    assert_eq!(node.pod("rdma0").mac, mac);
}

/// The kernel refuses to move the loopback netdev, which is `NETNS_LOCAL`, and a missing netdev.
pub fn what_cannot_be_moved(node: &Node<'_, impl Kernel>) {
    assert_eq!(node.refused(into_pod("none", "rdma0")), Errno::ENODEV);
    assert_eq!(node.refused(into_pod("lo", "rdma0")), Errno::EINVAL);
    let without_pod = node.kernel.execute(&into_pod("nic0", "rdma0"), None);
    let error = without_pod.expect_err("no pod").to_string();
    assert!(
        error.contains("the pod's namespace was not given"),
        "{error}"
    );
}

/// After an observation, the pod gives the name of its netdev to another netdev. The operation changes the netdev that
/// had the name.
pub fn an_observed_netdev_is_found_under_any_name(node: &Node<'_, impl Kernel>) {
    let mac = node.host("nic0").mac;
    for (nic, link) in [("nic0", "rdma0"), ("nic1", "other")] {
        node.make(into_pod(nic, link));
    }
    let observed = node.observe();
    for (from, to) in [("rdma0", "x"), ("other", "rdma0")] {
        node.make(Op::link(POD, &name(from), LinkChange::Rename(name(to))));
    }
    let make = |op| {
        node.kernel
            .execute_as_observed(&op, Some(node.pod), &observed)
    };
    make(Op::link(POD, &name("rdma0"), LinkChange::Rename(name("y")))).expect("a new name");
    make(to_host("rdma0", "nic0")).expect("a move");
    assert_eq!(node.host("nic0").mac, mac);
    // the observed netdev has left
    make(remove_link(POD, "rdma0")).expect("no error");
    assert_ne!(node.pod("rdma0").mac, mac);
    let refused = make(to_host("rdma0", "nic9")).expect_err("no netdev");
    assert!(
        refused.to_string().contains("dev rdma0 netns 1 name nic9"),
        "{refused}"
    );
}
