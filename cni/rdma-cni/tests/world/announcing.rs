// SPDX-License-Identifier: Apache-2.0
//! Tests that ADD announces the addresses of the pod to neighbours.

use crate::{
    leases::{Leases, link_of},
    node::{Node, Pod, address, host_change, name, settle},
};
use fake_kernel::Verdict;
use nix::errno::Errno;
use rdma_netns::{HardwareAddress, LinkChange, NetnsSide, Op, RdmaMode};
use serde_json::{Value, json};
use std::net::IpAddr;

/// Returns the announcements since this function last ran.
fn take_announcements(node: &Node) -> Vec<(HardwareAddress, IpAddr)> {
    node.kernel
        .with(|world| std::mem::take(&mut world.announced))
}

/// Returns `addresses`, each with the hardware address of the rail by which the pod announces it.
fn on_rails(node: &Node, pod: &Pod, addresses: &[(&str, &str)]) -> Vec<(HardwareAddress, IpAddr)> {
    let at = |(rail, ip): &(&str, &str)| (link_of(node, pod, rail).mac, ip.parse().unwrap());
    addresses.iter().map(at).collect()
}

const KEPT: [(&str, &str); 4] = [
    ("rdma0", "10.0.2.5"),
    ("rdma0", "fd00:2::5"),
    ("rdma1", "10.0.3.5"),
    ("rdma1", "fd00:3::5"),
];

const LEASED: [(&str, &str); 4] = [
    ("rdma0", "10.0.0.7"),
    ("rdma0", "fd00:0::7"),
    ("rdma1", "10.1.0.7"),
    ("rdma1", "fd00:1::7"),
];

#[test]
fn each_address_is_announced_once() {
    let node = Node::new(RdmaMode::Exclusive);
    let link_local = host_change("eth2", LinkChange::AddAddress(address("fe80::77/64")));
    node.change(None, &link_local);
    node.kernel.with(settle);
    let pod = node.pod("a");
    let config = node.two_rails();
    node.add(&pod, &config).must_succeed();
    assert_eq!(take_announcements(&node), on_rails(&node, &pod, &KEPT));
    node.run("CHECK", Some(&pod), &config);
    node.del(&pod, &config).must_succeed();
    assert_eq!(
        take_announcements(&node),
        [],
        "on the host they are where they were"
    );
}

#[test]
fn a_child_announces_the_addresses_of_ipam() {
    for child in ["macvlan", "ipvlan"] {
        let leases = Leases::new(2);
        let node = &leases.node;
        let pod = node.pod("a");
        let config = leases.config(json!({ "child": { "type": child } }));
        node.add(&pod, &config).must_succeed();
        assert_eq!(
            take_announcements(node),
            on_rails(node, &pod, &LEASED),
            "{child}"
        );
    }
}

/// Another machine may have an address whose duplicate address detection has not ended.
#[test]
fn a_tentative_address_is_not_announced() {
    for (dad, announced) in [("off", 4), ("wait", 4), ("optimistic", 2)] {
        let node = Node::new(RdmaMode::Exclusive);
        let pod = node.pod("a");
        let netns = node.netns(&pod);
        node.kernel.intercept(move |world, step| {
            if let Op::Link {
                link,
                change: LinkChange::Announce(address),
                ..
            } = step.op
            {
                let mut addresses = world.link(netns, link).unwrap().addresses.iter();
                let found = addresses.find(|it| it.ip == *address).unwrap();
                assert!(!found.tentative, "{found:?}");
            }
            Verdict::Proceed
        });
        let mut config = node.two_rails();
        config["ipv6"] = json!({ "dad": dad });
        node.add(&pod, &config).must_succeed();
        assert_eq!(take_announcements(&node).len(), announced, "{dad}");
    }
}

#[test]
fn a_netdev_that_an_earlier_plugin_placed_is_not_ours_to_announce() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let mut config = node.one_rail();
    config["type"] = "rdma".into();
    let netdev = Op::MoveLink {
        link: name("eth2"),
        from: NetnsSide::Host,
        to: NetnsSide::Pod,
        name: name("net1"),
    };
    let interface = json!({ "name": "net1", "sandbox": pod.netns.display().to_string() });
    config["prevResult"] = json!({ "cniVersion": "1.1.0", "interfaces": [interface] });
    node.change(Some(&pod), &netdev);
    for op in [
        Op::Link {
            at: NetnsSide::Pod,
            link: name("net1"),
            change: LinkChange::Up(true),
        },
        Op::Link {
            at: NetnsSide::Pod,
            link: name("net1"),
            change: LinkChange::AddAddress(address("10.7.0.1/24")),
        },
    ] {
        node.change(Some(&pod), &op);
    }
    node.add(&pod, &config).must_succeed();
    assert_eq!(take_announcements(&node), []);
}

/// Sets `verdict` for announcement number `at`, counted from 1. Other announcements succeed.
fn refuse(node: &Node, at: usize, verdict: Verdict) {
    let mut number = 0;
    node.kernel.begin();
    node.kernel.intercept(move |_, step| {
        number += usize::from(matches!(
            step.op,
            Op::Link {
                change: LinkChange::Announce(_),
                ..
            }
        ));
        match step.op {
            Op::Link {
                change: LinkChange::Announce(_),
                ..
            } if number == at => verdict,
            _ => Verdict::Proceed,
        }
    });
}

/// The pod works without the announcement: neighbours find the new hardware address themselves.
#[test]
fn a_refused_announcement_fails_no_add() {
    for at in 1..=4 {
        for verdict in [Verdict::Refuse(Errno::EPERM), Verdict::Deceive(Errno::EIO)] {
            let what = format!("announcement {at}, {verdict:?}");
            let moved = Node::new(RdmaMode::Exclusive);
            all_but_one(&moved, &moved.two_rails(), &KEPT, (at, verdict), &what);
            let leases = Leases::new(2);
            let config = leases.config(json!({}));
            all_but_one(&leases.node, &config, &LEASED, (at, verdict), &what);
        }
    }
}

#[track_caller]
fn all_but_one(
    node: &Node,
    config: &Value,
    addresses: &[(&str, &str)],
    (at, verdict): (usize, Verdict),
    what: &str,
) {
    let pod = node.pod("a");
    let before = node.snapshot();
    refuse(node, at, verdict);
    let result = node.add(&pod, config).must_succeed();
    let mut expected = on_rails(node, &pod, addresses);
    if matches!(verdict, Verdict::Refuse(_)) {
        expected.remove(at - 1);
    }
    assert_eq!(take_announcements(node), expected, "{what}");
    let mut with_result = config.clone();
    with_result["prevResult"] = result;
    let check = node.run("CHECK", Some(&pod), &with_result);
    assert_eq!(check.code(), 0, "{what}: {}", check.value);
    node.del(&pod, config).must_succeed();
    node.must_be(&before, what);
}
