// SPDX-License-Identifier: Apache-2.0
//! Debian's `macvlan` with addresses of its `master`'s prefixes, and of ranges.

use crate::lan::{HOST, Lan, ROUTERS, gateway_routes, ip, ips, network, ping, refused};
use integration::{Attachment, Conflist, Netns};
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs};

/// Asserts for every address of `result`: the pod's interface has it, it is in the network of one
/// of `hosts`, it is leased to `attachment`, and it is not the host's own.
#[track_caller]
fn assert_placed(lan: &Lan, pod: &Netns, attachment: &Attachment, result: &Value, hosts: &[&str]) {
    let reported = ips(result);
    assert_eq!(reported.len(), hosts.len(), "{result}");
    assert_eq!(pod.addresses(&attachment.ifname), reported);
    for (address, host) in reported.iter().zip(hosts) {
        assert_eq!(network(address), network(host));
        assert_ne!(ip(address), ip(host));
        let owner = (attachment.container.clone(), attachment.ifname.clone());
        assert_eq!(lan.lease(ip(address)), Some(owner));
    }
}

/// Runs ADD of two pods, pings between them, CHECK, CHECK without a lease, DEL, DEL of a pod that
/// has ended, and ADD of the first pod again. Returns both results of the first pod, and the result
/// of the second pod.
#[track_caller]
fn life(lan: &Lan, list: &Conflist, hosts: &[&str]) -> [Value; 3] {
    let runtime = lan.node.runtime();
    let pods = ["one", "two"].map(|name| lan.quick_pod(name));
    let attachments = [0, 1].map(|it| {
        let attachment = lan.node.attachment(["a", "b"][it], &pods[it]);
        attachment.of_pod("team", ["one", "two"][it])
    });
    let results = [0, 1].map(|it| {
        let result = runtime.add(list, &attachments[it]).expect("ADD");
        assert_placed(lan, &pods[it], &attachments[it], &result, hosts);
        result
    });
    assert_eq!(lan.leases().len(), 2 * hosts.len());
    for (from, to) in [(0, 1), (1, 0)] {
        for address in ips(&results[to]) {
            ping(&pods[from], ip(&address));
        }
        runtime.check(list, &attachments[from]).expect("CHECK");
    }

    let last = ip(ips(&results[0]).last().expect("an address"));
    fs::remove_file(lan.leases_dir().join(last.to_string())).expect("the lease");
    let text = refused(runtime.check(list, &attachments[0]), 999);
    assert!(
        text.contains(&format!("the lease of {last} is gone")),
        "{text}"
    );
    runtime.check(list, &attachments[1]).expect("CHECK");

    runtime.del(list, &attachments[0]).expect("DEL");
    assert!(!pods[0].has_link("eth0"));
    assert_eq!(lan.leases().len(), hosts.len(), "the second pod's are left");
    let again = Attachment::new("c", pods[0].path(), "eth0").of_pod("team", "one");
    let result = runtime.add(list, &again).expect("ADD");
    assert_placed(lan, &pods[0], &again, &result, hosts);
    pods[1].die();
    for _ in 0..2 {
        runtime.del(list, &attachments[1]).expect("no namespace");
    }
    runtime.del(list, &again).expect("DEL");
    lan.assert_nothing_is_held();
    let [first, second] = results;
    [first, result, second]
}

#[test]
fn addresses_of_the_parents_prefix_are_on_the_pods_interface() {
    for (strategy, family, hosts) in [
        ("sequential", None, &HOST[1..]),
        ("stable", Some("ipv6"), &HOST[1..]),
        ("sequential", Some("both"), &HOST[..]),
        ("stable", Some("both"), &HOST[..]),
    ] {
        let lan = Lan::new();
        let mut ipam = json!({"from": "parent", "strategy": strategy});
        if let Some(family) = family {
            ipam["family"] = family.into();
        }
        let list = lan.macvlan(&ipam);
        let [first, again, second] = life(&lan, &list, hosts);
        assert_ne!(first["ips"], second["ips"]);
        match strategy {
            "stable" => assert_eq!(first["ips"], again["ips"], "the same pod again"),
            _ => assert_ne!(first["ips"], again["ips"], "round robin"),
        }
        if strategy == "sequential" {
            // no router in the IPv6 prefix: rdma-ipam does not assign the first address
            let last = |result: &Value| ips(result).pop();
            assert_eq!(last(&first).as_deref(), Some("2001:db8:1::2/64"));
            assert_eq!(last(&second).as_deref(), Some("2001:db8:1::3/64"));
        }
    }
}

#[test]
fn the_parents_routers_are_the_pods() {
    let lan = Lan::new();
    let (runtime, pod) = (lan.node.runtime(), lan.node.pod("pod"));
    let attachment = lan.node.attachment("a", &pod);
    let by = |dst: &str, router: &str| (dst.to_owned(), router.to_owned());

    let list = lan.macvlan(&json!({"from": "parent", "family": "both"}));
    // this pod uses duplicate address detection, as in production
    let result = runtime.add(&list, &attachment).expect("ADD");
    assert_eq!(result["ips"][0]["gateway"], ROUTERS[0]);
    assert!(result["ips"][1].get("gateway").is_none(), "{result}");
    let routes = json!([
        {"dst": "0.0.0.0/0", "gw": ROUTERS[0]},
        {"dst": "::/0", "gw": ROUTERS[1]},
    ]);
    assert_eq!(result["routes"], routes);
    assert_eq!(
        gateway_routes(&pod),
        [by("default", ROUTERS[0]), by("default", ROUTERS[1])]
    );
    runtime.check(&list, &attachment).expect("CHECK");
    runtime.del(&list, &attachment).expect("DEL");

    // configured routes replace those of the parent; the gateway is kept
    let routes = json!([{"dst": "192.0.2.0/24"}]);
    let list = lan.macvlan(&json!({"from": "parent", "family": "ipv4", "routes": routes}));
    let result = runtime.add(&list, &attachment).expect("ADD");
    assert_eq!(result["routes"], routes);
    assert_eq!(gateway_routes(&pod), [by("192.0.2.0/24", ROUTERS[0])]);
    runtime.del(&list, &attachment).expect("DEL");

    // rdma-ipam does not assign the routers' addresses
    let list = lan.macvlan(&json!({"from": "parent", "family": "ipv4"}));
    let request = attachment.with_capability("ips", json!([ROUTERS[0]]));
    let text = refused(runtime.add(&list, &request), 7);
    assert!(text.contains("10.1.0.254 is a gateway"), "{text}");
    lan.assert_nothing_is_held();
}

/// Debian's `macvlan` refuses an IPv4 route with an IPv6 gateway, and then its ADD fails.
#[test]
fn an_ipv4_route_with_an_ipv6_gateway_is_left_out() {
    let lan = Lan::new();
    let [router, other] = ROUTERS;
    let route = format!("route add 10.99.0.0/16 via inet6 {other} dev eth1");
    lan.node.host.ip(&route);
    let (runtime, pod) = (lan.node.runtime(), lan.quick_pod("pod"));
    let attachment = lan.node.attachment("a", &pod);
    let list = lan.macvlan(&json!({"from": "parent", "family": "both"}));
    let result = runtime.add(&list, &attachment).expect("ADD");
    let routes = json!([{"dst": "0.0.0.0/0", "gw": router}, {"dst": "::/0", "gw": other}]);
    assert_eq!(result["routes"], routes);
    runtime.del(&list, &attachment).expect("DEL");
    lan.assert_nothing_is_held();
}

#[test]
fn ranges() {
    for strategy in ["sequential", "stable"] {
        let lan = Lan::new();
        let ipam = json!({
            "strategy": strategy,
            "ranges": [
                [{"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.20", "gateway": "10.7.0.9"}],
                [{"subnet": "fd07::/64"}],
            ],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "fd99::/16", "gw": "fd07::1"}],
        });
        let list = lan.macvlan(&ipam);
        let [first, again, _] = life(&lan, &list, &["10.7.0.1/24", "fd07::1/64"]);
        assert_eq!(first["ips"] == again["ips"], strategy == "stable");
        assert_eq!(first["ips"][0]["gateway"], "10.7.0.9");
        assert_eq!(first["ips"][1]["gateway"], "fd07::1");

        let (runtime, pod) = (lan.node.runtime(), lan.quick_pod("pod"));
        let request = lan
            .node
            .attachment("w", &pod)
            .with_capability("ips", json!(["10.7.0.77/24", "fd07::77"]));
        runtime.add(&list, &request).expect("ADD");
        assert_eq!(pod.addresses("eth0"), ["10.7.0.77/24", "fd07::77/64"]);
        let by_gateway = [("default", "10.7.0.9"), ("fd99::/16", "fd07::1")];
        let by_gateway = by_gateway.map(|(dst, gw)| (dst.to_owned(), gw.to_owned()));
        assert_eq!(gateway_routes(&pod), by_gateway);
        runtime.del(&list, &request).expect("DEL");
        lan.assert_nothing_is_held();
    }
}

#[test]
fn the_hosts_own_addresses_are_never_given() {
    let lan = Lan::bare();
    lan.give(&["10.1.0.3/29"]);
    // an address of another netdev
    lan.node.host.ip("address add 10.1.0.5/32 dev lo");
    let list = lan.macvlan(&json!({"from": "parent", "family": "ipv4"}));
    let runtime = lan.node.runtime();
    let pods: Vec<_> = ["a", "b", "c"]
        .map(|name| (lan.quick_pod(name), name))
        .into();
    for (pod, container) in &pods {
        let attachment = lan.node.attachment(container, pod);
        runtime.add(&list, &attachment).expect("ADD");
    }
    let given: BTreeSet<String> = pods
        .iter()
        .flat_map(|(pod, _)| pod.addresses("eth0"))
        .collect();
    let expected = ["10.1.0.2/29", "10.1.0.4/29", "10.1.0.6/29"];
    assert_eq!(given, expected.map(str::to_owned).into());

    let pod = lan.quick_pod("pod");
    let attachment = lan.node.attachment("d", &pod);
    let text = refused(runtime.add(&list, &attachment), 11);
    assert!(
        text.contains(
            "no address is free in 10.1.0.1-10.1.0.6 of 10.1.0.0/29: 3 addresses are in use"
        ),
        "{text}"
    );
    // Debian's macvlan leaves its interface in the pod until DEL
    assert!(pod.addresses("eth0").is_empty());
    runtime.del(&list, &attachment).expect("DEL");
    let text = lan.direct("STATUS", &list, &json!({})).run().error(50);
    assert!(text.contains("3 addresses are in use"), "{text}");
    for own in ["10.1.0.3", "10.1.0.5"] {
        let request = attachment.clone().with_capability("ips", json!([own]));
        let text = refused(runtime.add(&list, &request), 7);
        let why = format!("{own} is an address of this host itself");
        assert!(text.contains(&why), "{text}");
        runtime.del(&list, &attachment).expect("DEL");
    }
    for (pod, container) in &pods {
        let attachment = lan.node.attachment(container, pod);
        runtime.del(&list, &attachment).expect("DEL");
    }
    lan.assert_nothing_is_held();
}

#[test]
fn a_parent_without_a_prefix_is_reported_in_a_sentence() {
    for (addresses, family, sentence) in [
        (
            &["10.1.0.10/24"][..],
            "ipv6",
            "eth1 (rail eth0) has no global IPv6 address on this host: give the netdev one (not temporary or \
             deprecated) with a prefix of /126 or shorter, or choose another ipam.family",
        ),
        (
            &["2001:db8:1::10/64"],
            "both",
            "eth1 (rail eth0) has no global IPv4 address on this host",
        ),
        (
            &["2001:db8:1::10/128"],
            "ipv6",
            "eth1 (rail eth0) has no IPv6 prefix with room for pods: the prefix of \
             2001:db8:1::10/128 is too long",
        ),
    ] {
        let lan = Lan::bare();
        lan.give(addresses);
        let list = lan.macvlan(&json!({"from": "parent", "family": family}));
        let (runtime, pod) = (lan.node.runtime(), lan.quick_pod("pod"));
        let attachment = lan.node.attachment("a", &pod);
        let text = refused(runtime.add(&list, &attachment), 101);
        assert!(text.contains(sentence), "{text}");
        // Debian's macvlan leaves its interface in the pod until DEL
        assert!(pod.addresses("eth0").is_empty());
        lan.assert_nothing_is_held();
        let text = lan.direct("STATUS", &list, &json!({})).run().error(50);
        let same = sentence.replace(" (rail eth0)", "");
        assert!(text.contains(&same), "{text}");
        runtime.del(&list, &attachment).expect("DEL");
    }
}

/// Debian's macvlan supports CNI only up to 1.0, and refuses STATUS. The test calls STATUS of `rdma-ipam` directly.
#[test]
fn status() {
    let lan = Lan::new();
    let mut list = lan.macvlan(&json!({"from": "parent", "strategy": "stable"}));
    list.version = "1.1.0".into();
    for outcome in lan.node.runtime().status(&list) {
        refused(Err::<(), _>(outcome), 3);
    }
    lan.direct("STATUS", &list, &json!({})).run().silent();
    let call = lan.direct("STATUS", &list, &json!({"master": "eth9"}));
    let text = call.run().error(50);
    assert!(text.contains("eth9"), "{text}");
    // no address was leased by these calls
    lan.assert_nothing_is_held();
}
