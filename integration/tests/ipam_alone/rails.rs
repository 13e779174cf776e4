// SPDX-License-Identifier: Apache-2.0
//! `rdma-cni` without RDMA: macvlan children of two rails. Each child gets addresses of its
//! parent's prefixes.

use crate::lan::{Lan, ip, ips, network, ping};
use integration::{Attachment, Conflist, Netns, Snapshot};
use serde_json::json;
use std::net::IpAddr;

const RAILS: [[&str; 2]; 2] = [
    ["10.1.0.10/24", "2001:db8:1::10/64"],
    ["10.2.0.10/24", "2001:db8:2::10/64"],
];

/// A node whose `eth1` and `eth2` have [`RAILS`], and the list that shares them.
fn rails(strategy: &str) -> (Lan, Conflist) {
    let lan = Lan::bare();
    lan.node.add_rail("eth2");
    for (netdev, addresses) in ["eth1", "eth2"].iter().zip(RAILS) {
        for address in addresses {
            let add = format!("address add {address} dev {netdev}");
            lan.node.host.ip(&add);
        }
    }
    let list = list_of(&lan, strategy);
    (lan, list)
}

fn list_of(lan: &Lan, strategy: &str) -> Conflist {
    let mut plugin = lan.node.configuration(&["eth1", "eth2"]);
    plugin["mode"] = "share".into();
    plugin["capabilities"] = json!({"ips": true});
    let ipam = json!({"from": "parent", "family": "both", "strategy": strategy});
    plugin["ipam"] = lan.ipam(&ipam);
    Conflist::new("1.1.0", vec![plugin])
}

/// Asserts that the pod's rails have addresses of their parents' networks, leased with the names of
/// the rails.
#[track_caller]
fn assert_placed(lan: &Lan, pod: &Netns, container: &str) {
    for (rail, hosts) in ["rdma0", "rdma1"].iter().zip(RAILS) {
        let addresses = pod.addresses(rail);
        assert_eq!(addresses.len(), 2, "{addresses:?}");
        for (address, host) in addresses.iter().zip(hosts) {
            assert_eq!(network(address), network(host));
            assert_ne!(ip(address), ip(host));
            let owner = (container.to_owned(), (*rail).to_owned());
            assert_eq!(lan.lease(ip(address)), Some(owner));
        }
    }
}

#[test]
fn each_rail_has_addresses_of_its_own_parent() {
    for strategy in ["sequential", "stable"] {
        let (lan, list) = rails(strategy);
        let before = Snapshot::of(&lan.node.host);
        let runtime = lan.node.runtime();
        for outcome in runtime.status(&list) {
            outcome.silent();
        }
        let pods = ["one", "two"].map(|name| lan.quick_pod(name));
        let attachments = [0, 1].map(|it| {
            let attachment = lan.node.attachment(["a", "b"][it], &pods[it]);
            attachment.of_pod("team", ["one", "two"][it])
        });
        let results = [0, 1].map(|it| {
            let result = runtime.add(&list, &attachments[it]).expect("ADD");
            assert_placed(&lan, &pods[it], ["a", "b"][it]);
            result
        });
        assert_eq!(lan.leases().len(), 8);
        for address in ips(&results[1]) {
            ping(&pods[0], ip(&address));
        }

        // the runtime lists attachments, and not their rails
        let all: Vec<&Attachment> = attachments.iter().collect();
        for outcome in runtime.gc(&list, &all) {
            outcome.silent();
        }
        assert_eq!(lan.leases().len(), 8);
        for attachment in &attachments {
            runtime.check(&list, attachment).expect("CHECK");
        }
        for outcome in runtime.gc(&list, &all[..1]) {
            outcome.silent();
        }
        assert_placed(&lan, &pods[0], "a");
        assert_eq!(lan.leases().len(), 4);
        assert!(!pods[1].has_link("rdma0") && !pods[1].has_link("rdma1"));

        let last = ip(&pods[0].addresses("rdma1")[1]);
        std::fs::remove_file(lan.leases_dir().join(last.to_string())).expect("the lease");
        let text = runtime.check(&list, &attachments[0]);
        let text = text.expect_err("a lease is gone").failure().text();
        let sentence = format!("the lease of {last} is gone");
        assert!(text.contains(&sentence), "{text}");
        for attachment in &attachments {
            runtime.del(&list, attachment).expect("DEL");
        }
        lan.assert_nothing_is_held();
        assert!(lan.node.records().is_empty());
        before.assert_restored(&lan.node.host);

        let again = Attachment::new("c", pods[0].path(), "eth0").of_pod("team", "one");
        let result = runtime.add(&list, &again).expect("ADD");
        assert_eq!(result["ips"] == results[0]["ips"], strategy == "stable");
        pods[0].die();
        runtime.del(&list, &again).expect("no namespace");
        lan.assert_nothing_is_held();
        before.assert_restored(&lan.node.host);
    }
}

/// Requests one IPv4 address and one IPv6 address for each rail, in any order.
const REQUESTED_IPS: [&str; 4] = [
    "2001:db8:2::77",
    "10.1.0.77",
    "10.2.0.77/24",
    "2001:db8:1::77",
];

#[test]
fn each_rail_gets_the_requested_addresses_of_its_own_network() {
    let (lan, list) = rails("stable");
    let (runtime, pod) = (lan.node.runtime(), lan.quick_pod("pod"));
    let attachment = lan.node.attachment("a", &pod).of_pod("team", "one");
    let mut by_args = list.clone();
    by_args.plugins[0]["args"] = json!({"cni": {"ips": REQUESTED_IPS}});
    let by_runtime = attachment
        .clone()
        .with_capability("ips", json!(REQUESTED_IPS));
    for (list, attachment) in [(&list, &by_runtime), (&by_args, &attachment)] {
        runtime.add(list, attachment).expect("ADD");
        assert_placed(&lan, &pod, "a");
        for (rail, number) in [("rdma0", 1), ("rdma1", 2)] {
            let requested = [
                format!("10.{number}.0.77/24"),
                format!("2001:db8:{number}::77/64"),
            ];
            assert_eq!(pod.addresses(rail), requested);
        }
        runtime.check(list, attachment).expect("CHECK");
        runtime.del(list, attachment).expect("DEL");
        lan.assert_nothing_is_held();
    }

    // requests an address for one rail; `stable` could assign .77 to the other rail by chance
    let list = list_of(&lan, "sequential");
    let mut by_argument = attachment.clone();
    by_argument.args.insert("IP".into(), "10.2.0.77".into());
    runtime.add(&list, &by_argument).expect("ADD");
    assert_placed(&lan, &pod, "a");
    assert_eq!(pod.addresses("rdma1")[0], "10.2.0.77/24");
    assert_eq!(pod.addresses("rdma0")[0], "10.1.0.2/24");
    runtime.check(&list, &by_argument).expect("CHECK");
    runtime.del(&list, &by_argument).expect("DEL");
    lan.assert_nothing_is_held();
}

#[test]
fn a_requested_address_that_cannot_be_had_is_refused_in_a_sentence() {
    let (lan, list) = rails("sequential");
    let (runtime, pod) = (lan.node.runtime(), lan.quick_pod("pod"));
    let (before, in_pod) = (Snapshot::of(&lan.node.host), Snapshot::of(&pod));
    let attachment = lan.node.attachment("a", &pod);
    let holder = lan.quick_pod("holder");
    let held = lan.node.attachment("b", &holder);
    let held = held.with_capability("ips", json!(["10.2.0.77"]));
    for (request, sentence) in [
        (
            "192.0.2.7",
            "the requested address 192.0.2.7 is not in 10.1.0.1-10.1.0.254 of 10.1.0.0/24 or ",
        ),
        (
            "10.2.0.10",
            "10.2.0.10 is an address of this host itself: no pod gets it",
        ),
        ("10.2.0.255", "10.2.0.255 is the broadcast address"),
        ("10.2.0.77", "10.2.0.77 is held by b rdma1"),
    ] {
        let is_held = request == "10.2.0.77";
        if is_held {
            runtime.add(&list, &held).expect("ADD");
        }
        let by_runtime = attachment.clone().with_capability("ips", json!([request]));
        let mut by_argument = attachment.clone();
        by_argument.args.insert("IP".into(), request.into());
        for attachment in [&by_runtime, &by_argument] {
            let failed = runtime.add(&list, attachment).expect_err("refused");
            let text = failed.failure().text();
            assert!(text.contains(sentence), "{text}");
            let left: Vec<IpAddr> = lan.leases().into_keys().collect();
            assert_eq!(left.len(), if is_held { 4 } else { 0 }, "{left:?}");
            assert_eq!(lan.node.records().len(), usize::from(is_held));
            in_pod.assert_restored(&pod);
            runtime.del(&list, attachment).expect("DEL");
        }
    }
    runtime.del(&list, &held).expect("DEL");
    lan.assert_nothing_is_held();
    assert!(lan.node.records().is_empty());
    before.assert_restored(&lan.node.host);
}

#[test]
fn a_rail_without_a_prefix_is_named_and_nothing_is_left_of_the_other() {
    let (lan, list) = rails("stable");
    let (runtime, pod) = (lan.node.runtime(), lan.quick_pod("pod"));
    lan.node.host.ip("address del 10.2.0.10/24 dev eth2");
    let (before, in_pod) = (Snapshot::of(&lan.node.host), Snapshot::of(&pod));
    let attachment = lan.node.attachment("a", &pod);
    let failed = runtime.add(&list, &attachment).expect_err("no prefix");
    let text = failed.failure().text();
    let sentence = "eth2 (rail rdma1) has no global IPv4 address on this host";
    assert!(text.contains(sentence), "{text}");
    let statuses = runtime.status(&list);
    let text = statuses[0].error(50);
    assert!(text.contains("eth2"), "{text}");
    lan.assert_nothing_is_held();
    in_pod.assert_restored(&pod);
    runtime.del(&list, &attachment).expect("DEL");
    before.assert_restored(&lan.node.host);
}
