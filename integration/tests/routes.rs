// SPDX-License-Identifier: Apache-2.0
//! Routes of IPAM plugins together with the pod's own routes, and MTUs that are too small for IPv6.

use integration::{Netns, Node, Outcome, Snapshot, ipam};
use serde_json::{Value, json};

/// A pod after its primary network's ADD, with a default route of each family.
fn pod_with_default_routes(node: &Node) -> Netns {
    let pod = node.pod("pod");
    pod.ip("link add name eth0 type veth peer name uplink");
    pod.ip("link set dev uplink up");
    pod.ip("link set dev eth0 up");
    pod.ip("address add 10.244.0.9/24 dev eth0");
    pod.ip("address add fd00:244::9/64 dev eth0 nodad");
    pod.ip("route add default via 10.244.0.1 dev eth0");
    pod.ip("-6 route add default via fd00:244::1 dev eth0");
    pod
}

/// The routes of a family to `destination`, in ip's order by metric.
fn routes(pod: &Netns, family: u8, destination: &str) -> Vec<Value> {
    let mut routes = pod.show(&format!("-{family} route show table main"));
    routes.retain(|route| route["dst"] == destination);
    routes
}

/// The effective metric of a route.
fn metric(route: &Value) -> u64 {
    route["metric"].as_u64().unwrap_or(0)
}

/// The netdev of the route to `address`.
fn way_to(pod: &Netns, address: &str) -> Value {
    pod.show(&format!("route get {address}"))[0]["dev"].clone()
}

fn check(node: &Node, configuration: &Value, result: Value, pod: &Netns) -> Outcome {
    let mut configuration = configuration.clone();
    configuration["prevResult"] = result;
    node.invoke("CHECK", "a", pod.path())
        .input(&configuration)
        .run()
}

#[test]
fn the_pods_own_default_route_stays_the_one_that_is_used() {
    let node = Node::with_rails(1);
    let before = Snapshot::of(&node.host);
    let pod = pod_with_default_routes(&node);
    let own = [4, 6].map(|family| routes(&pod, family, "default"));
    let mut configuration = node.configuration(&["eth1"]);
    configuration["cniVersion"] = "1.0.0".into();
    configuration["ipam"] = json!({
        "type": "static",
        "addresses": [
            {"address": "192.0.2.10/24", "gateway": "192.0.2.1"},
            {"address": "2001:db8:1::10/64", "gateway": "2001:db8:1::1"},
        ],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    });
    let result = node.add(&configuration, "a", &pod);
    for (family, own) in [4, 6].into_iter().zip(&own) {
        let now = routes(&pod, family, "default");
        assert_eq!(now.len(), 2, "{now:?}");
        assert_eq!(now[0], own[0], "the pod's own has changed");
        assert_eq!(now[1]["dev"], "rdma0");
        assert!(metric(&now[1]) > metric(&now[0]), "{now:?}");
    }
    assert_eq!(way_to(&pod, "203.0.113.1"), "eth0");
    assert_eq!(way_to(&pod, "2001:db8:ffff::1"), "eth0");
    assert_eq!(way_to(&pod, "203.0.113.1 from 192.0.2.10"), "rdma0");
    assert_eq!(way_to(&pod, "203.0.113.1 oif rdma0"), "rdma0");
    check(&node, &configuration, result.clone(), &pod).silent();
    pod.ip("route del default dev rdma0");
    let text = check(&node, &configuration, result, &pod).failure().text();
    assert!(
        text.contains("rdma0") && text.contains("0.0.0.0/0"),
        "{text}"
    );
    node.del(&configuration, "a", &pod);
    for (family, own) in [4, 6].into_iter().zip(own) {
        assert_eq!(routes(&pod, family, "default"), own);
    }
    before.assert_restored(&node.host);
}

#[test]
fn rails_with_one_destination_each_have_their_route_to_it() {
    let node = Node::with_rails(2);
    let before = Snapshot::of(&node.host);
    let pod = node.pod("pod");
    for rail in [0, 1] {
        let answer = json!({
            "ips": [
                {"address": format!("10.9.{rail}.7/24"), "gateway": format!("10.9.{rail}.1")},
                {"address": format!("fd00:9:{rail}::7/64"), "gateway": format!("fd00:9:{rail}::1")},
            ],
            "routes": [
                {"dst": "198.51.100.0/24"}, {"dst": "2001:db8:99::/48"},
                {"dst": "0.0.0.0/0"}, {"dst": "::/0"},
            ],
        });
        node.ipam.answer(&format!("ADD.rdma{rail}"), &answer);
    }
    let mut configuration = node.configuration(&["eth1", "eth2"]);
    configuration["ipam"] = json!({"type": ipam::NAME});
    let result = node.add(&configuration, "a", &pod);
    for (family, destination) in [
        (4, "198.51.100.0/24"),
        (6, "2001:db8:99::/48"),
        (4, "default"),
        (6, "default"),
    ] {
        let now = routes(&pod, family, destination);
        let rails: Vec<&Value> = now.iter().map(|route| &route["dev"]).collect();
        assert_eq!(rails, ["rdma0", "rdma1"], "{destination}: {now:?}");
        assert!(metric(&now[0]) < metric(&now[1]), "{now:?}");
    }
    check(&node, &configuration, result, &pod).silent();
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}

#[test]
fn an_mtu_below_what_ipv6_needs_is_refused_where_there_is_ipv6() {
    let node = Node::with_rails(1);
    node.host.ip("address add 192.0.2.5/24 dev eth1");
    let ipv4_only = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&["eth1"]);
    configuration["mtu"] = 1000.into();
    let pod = node.pod("pod");
    let result = node.add(&configuration, "a", &pod);
    assert_eq!(result["interfaces"][0]["mtu"], 1000);
    assert_eq!(pod.link("rdma0").expect("in the pod")["mtu"], 1000);
    assert_eq!(pod.addresses("rdma0"), ["192.0.2.5/24"]);
    check(&node, &configuration, result, &pod).silent();
    node.del(&configuration, "a", &pod);
    ipv4_only.assert_restored(&node.host);

    node.host.ip("address add 2001:db8::5/64 dev eth1 nodad");
    let before = Snapshot::of(&node.host);
    let call = node.invoke("ADD", "a", pod.path());
    let text = call.input(&configuration).run().failure().text();
    assert!(text.contains("1280") && text.contains("eth1"), "{text}");
    assert!(!pod.has_link("rdma0"));
    before.assert_restored(&node.host);
    assert!(node.records().is_empty(), "{:?}", node.records());
    configuration["mtu"] = 1280.into();
    node.add(&configuration, "a", &pod);
    assert_eq!(pod.addresses("rdma0"), ["192.0.2.5/24", "2001:db8::5/64"]);
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}

#[test]
fn ipv6_addresses_of_ipam_need_their_mtu_too() {
    let node = Node::with_rails(1);
    let before = Snapshot::of(&node.host);
    let pod = node.pod("pod");
    let ips = json!([{"address": "10.0.0.7/24"}, {"address": "2001:db8::7/64"}]);
    node.ipam.answer("ADD", &json!({ "ips": ips }));
    let mut configuration = node.configuration(&["eth1"]);
    configuration["ipam"] = json!({"type": ipam::NAME});
    configuration["mtu"] = 1000.into();
    let call = node.invoke("ADD", "a", pod.path());
    let text = call.input(&configuration).run().failure().text();
    assert!(text.contains("1280"), "{text}");
    assert_eq!(node.ipam.interfaces("DEL"), ["rdma0"]);
    before.assert_restored(&node.host);
    assert!(node.records().is_empty(), "{:?}", node.records());
}

/// A pod with two rails. The switch acts as the routers of both rails. Behind these routers is one
/// network, with `198.51.100.1` and `2001:db8:99::1`.
fn two_rails(node: &Node, pod: &Netns, base: u32) -> (Value, Value) {
    for rail in [0, 1] {
        for address in [format!("10.9.{rail}.1/24"), format!("fd00:9:{rail}::1/64")] {
            node.switch
                .ip(&format!("address add {address} dev br0 nodad"));
        }
        let answer = json!({
            "ips": [
                {"address": format!("10.9.{rail}.7/24"), "gateway": format!("10.9.{rail}.1")},
                {"address": format!("fd00:9:{rail}::7/64"), "gateway": format!("fd00:9:{rail}::1")},
            ],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        });
        node.ipam.answer(&format!("ADD.rdma{rail}"), &answer);
    }
    node.switch.ip("link set dev lo up");
    node.switch.ip("address add 198.51.100.1/32 dev lo");
    node.switch
        .ip("address add 2001:db8:99::1/128 dev lo nodad");
    let mut configuration = node.configuration(&["eth1", "eth2"]);
    configuration["ipam"] = json!({"type": ipam::NAME});
    configuration["routing"] = json!({"tableBase": base});
    let result = node.add(&configuration, "a", pod);
    (configuration, result)
}

fn sent(pod: &Netns, rail: u32) -> u64 {
    let path = format!("/sys/class/net/rdma{rail}/statistics/tx_packets");
    pod.run(&format!("cat {path}"))
        .trim()
        .parse()
        .expect("a count")
}

/// Returns the number of packets that each rail has sent for 40 pings from `peer` to `address`.
fn replies(node: &Node, pod: &Netns, peer: &str, address: &str) -> [u64; 2] {
    let before = [0, 1].map(|rail| sent(pod, rail));
    node.switch.run(&format!(
        "ping -n -q -c 40 -i 0.01 -W 5 -I {peer} {address}"
    ));
    [0, 1].map(|rail| sent(pod, rail as u32) - before[rail])
}

fn rules(pod: &Netns) -> Vec<String> {
    let lines = ["-4", "-6"].map(|family| pod.ip(&format!("{family} rule show priority 1000")));
    let lines = lines.iter().flat_map(|text| text.lines());
    lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

#[test]
fn replies_leave_by_the_rail_that_was_addressed() {
    for base in [1000, 0] {
        let node = Node::with_rails(2);
        let before = Snapshot::of(&node.host);
        let pod = node.pod("pod");
        let (configuration, result) = two_rails(&node, &pod, base);
        for rail in [0, 1] {
            for (peer, address) in [
                ("198.51.100.1", format!("10.9.{rail}.7")),
                ("2001:db8:99::1", format!("fd00:9:{rail}::7")),
            ] {
                let replies = replies(&node, &pod, peer, &address);
                // without tables, all packets use the first rail's default route
                let way = if base == 0 { 0 } else { rail };
                assert!(
                    replies[way] >= 40 && replies[1 - way] < 20,
                    "{address}: {replies:?}"
                );
            }
        }
        // a program that binds to no address has a route, too
        assert_eq!(way_to(&pod, "198.51.100.1"), "rdma0");
        assert_eq!(rules(&pod).len(), if base == 0 { 0 } else { 4 });
        check(&node, &configuration, result, &pod).silent();
        node.del(&configuration, "a", &pod);
        assert!(rules(&pod).is_empty(), "{:?}", rules(&pod));
        before.assert_restored(&node.host);
    }
}

#[test]
fn a_rule_or_route_of_a_table_that_is_gone_is_drift() {
    for (change, words) in [
        (
            "rule del from 10.9.1.7 lookup 1001",
            "from 10.9.1.7/32 lookup 1001 priority 1000",
        ),
        (
            "-6 rule del from fd00:9:0::7 lookup 1000",
            "from fd00:9::7/128 lookup 1000",
        ),
        ("route del default table 1001", "0.0.0.0/0 in table 1001"),
        (
            "-6 route del fd00:9:1::/64 table 1001",
            "fd00:9:1::/64 in table 1001",
        ),
        (
            "route del 10.9.1.0/24 table main",
            "10.9.1.0/24 with metric 200",
        ),
        (
            "-6 route del fd00:9::/64 table main",
            "fd00:9::/64 with metric 200",
        ),
        ("route flush table 1000", "10.9.0.0/24 in table 1000"),
    ] {
        let node = Node::with_rails(2);
        let pod = node.pod("pod");
        let (configuration, result) = two_rails(&node, &pod, 1000);
        pod.ip(change);
        let text = check(&node, &configuration, result, &pod).failure().text();
        assert!(text.contains(words), "{change}: {words:?} is not in {text}");
        node.del(&configuration, "a", &pod);
        assert!(rules(&pod).is_empty());
    }
}

/// The rails keep the addresses that they had on the host, without IPAM. The pod has created rules
/// of its own.
#[test]
fn kept_addresses_have_tables_and_the_pods_own_rules_stay() {
    let node = Node::with_rails(2);
    for rail in [1, 2] {
        node.host
            .ip(&format!("address add 10.9.{rail}.5/24 dev eth{rail}"));
        node.host.ip(&format!(
            "address add fd00:9:{rail}::5/64 dev eth{rail} nodad"
        ));
        node.host.ip(&format!(
            "route add 198.51.100.0/24 via 10.9.{rail}.1 dev eth{rail} metric {rail}"
        ));
    }
    let before = Snapshot::of(&node.host);
    let pod = node.pod("pod");
    pod.ip("rule add from 192.0.2.1 lookup 77 priority 1000");
    let configuration = node.configuration(&["eth1", "eth2"]);
    let result = node.add(&configuration, "a", &pod);
    assert_eq!(way_to(&pod, "198.51.100.9 from 10.9.2.5"), "rdma1");
    assert_eq!(way_to(&pod, "198.51.100.9 from 10.9.1.5"), "rdma0");
    assert_eq!(rules(&pod).len(), 5);
    check(&node, &configuration, result, &pod).silent();
    node.del(&configuration, "a", &pod);
    assert_eq!(rules(&pod), ["1000: from 192.0.2.1 lookup 77"]);
    before.assert_restored(&node.host);
}

#[test]
fn a_table_of_the_pods_own_is_left_alone() {
    let node = Node::with_rails(2);
    for rail in [1, 2] {
        node.host
            .ip(&format!("address add 10.9.{rail}.5/24 dev eth{rail}"));
    }
    let before = Snapshot::of(&node.host);
    let pod = node.pod("pod");
    pod.ip("link add name eth0 type veth peer name uplink");
    pod.ip("link set dev uplink up");
    pod.ip("link set dev eth0 up");
    pod.ip("route add 192.0.2.0/24 dev eth0 table 1001");
    let configuration = node.configuration(&["eth1", "eth2"]);
    node.add(&configuration, "a", &pod);
    let own = pod.show("route show table 1001");
    assert_eq!(own.len(), 1, "{own:?}");
    assert_eq!(own[0]["dst"], "192.0.2.0/24");
    // the rails get the next free tables
    let [first, second] = &rules(&pod)[..] else {
        panic!("{:?}", rules(&pod))
    };
    assert!(first.ends_with("from 10.9.1.5 lookup 1002"), "{first}");
    assert!(second.ends_with("from 10.9.2.5 lookup 1003"), "{second}");
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
    assert_eq!(pod.show("route show table 1001").len(), 1);
}

/// The IPAM plugin's order of routes is kept, and its routes do not become a route with several
/// next hops.
#[test]
fn priorities_of_ipam_keep_their_order_behind_the_pods_own() {
    let node = Node::with_rails(2);
    let before = Snapshot::of(&node.host);
    let pod = pod_with_default_routes(&node);
    for rail in [0, 1] {
        let network = format!("fd00:9:{rail}:");
        let ips = json!([
            {"address": format!("10.9.{rail}.7/24")},
            {"address": format!("{network}:7/64"), "gateway": "fe80::1"},
        ]);
        let answer = json!({"ips": ips, "routes": [
            {"dst": "0.0.0.0/0", "gw": format!("10.9.{rail}.2"), "priority": 9},
            {"dst": "0.0.0.0/0", "gw": format!("10.9.{rail}.3"), "priority": 4},
            {"dst": "::/0", "gw": format!("{network}:2"), "priority": 1024},
            {"dst": "::/0", "gw": format!("{network}:3"), "priority": 500},
        ]});
        node.ipam.answer(&format!("ADD.rdma{rail}"), &answer);
    }
    for metric in [0, 200] {
        let mut configuration = node.configuration(&["eth1", "eth2"]);
        configuration["ipam"] = json!({"type": ipam::NAME});
        configuration["routing"] = json!({"metric": metric});
        let result = node.add(&configuration, "a", &pod);
        for family in [4, 6] {
            let now = routes(&pod, family, "default");
            let hosts: Vec<char> = now
                .iter()
                .map(|it| it["gateway"].as_str().expect("one next hop"))
                .filter_map(|gateway| gateway.chars().last())
                .collect();
            assert_eq!(hosts, ['1', '3', '2', '3', '2'], "{now:?}");
            assert!(metric_grows(&now), "{now:?}");
        }
        check(&node, &configuration, result, &pod).silent();
        node.del(&configuration, "a", &pod);
        before.assert_restored(&node.host);
    }
}

fn metric_grows(routes: &[Value]) -> bool {
    routes.is_sorted_by(|a, b| metric(a) < metric(b))
}

/// Without a default route of IPAM, the table has a route by the gateway.
#[test]
fn a_link_local_gateway_is_the_way_of_its_table() {
    let node = Node::with_rails(2);
    let before = Snapshot::of(&node.host);
    let pod = node.pod("pod");
    for rail in [0, 1] {
        let ips = json!([{"address": format!("fd00:9:{rail}::7/64"), "gateway": "fe80::1"}]);
        node.ipam
            .answer(&format!("ADD.rdma{rail}"), &json!({"ips": ips}));
    }
    let mut configuration = node.configuration(&["eth1", "eth2"]);
    configuration["ipam"] = json!({"type": ipam::NAME});
    let result = node.add(&configuration, "a", &pod);
    for rail in [0, 1] {
        let table = 1000 + rail;
        let routes = pod.show(&format!("-6 route show table {table} default"));
        assert_eq!(routes.len(), 1, "{routes:?}");
        assert_eq!(routes[0]["gateway"], "fe80::1");
        assert_eq!(routes[0]["dev"], format!("rdma{rail}"));
    }
    check(&node, &configuration, result, &pod).silent();
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}

/// Without IPAM, a route with several next hops stays one route in the pod and in the rail's table.
#[test]
fn kept_next_hops_stay_together() {
    let node = Node::with_rails(2);
    for rail in [1, 2] {
        let network = format!("fd00:9:{rail}:");
        node.host
            .ip(&format!("address add {network}:5/64 dev eth{rail} nodad"));
    }
    let hops = [2, 3].map(|host| format!("nexthop via fd00:9:1::{host} dev eth1"));
    let hops = hops.join(" ");
    node.host
        .ip(&format!("-6 route add 2001:db8:99::/48 metric 50 {hops}"));
    let before = Snapshot::of(&node.host);
    let pod = node.pod("pod");
    let configuration = node.configuration(&["eth1", "eth2"]);
    let result = node.add(&configuration, "a", &pod);
    for table in ["main", "1000"] {
        let routes = pod.show(&format!("-6 route show table {table} 2001:db8:99::/48"));
        assert_eq!(routes.len(), 1, "{table}: {routes:?}");
        let hops = routes[0]["nexthops"].as_array();
        assert_eq!(hops.map(Vec::len), Some(2), "{table}: {routes:?}");
    }
    check(&node, &configuration, result, &pod).silent();
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}
