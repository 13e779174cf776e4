// SPDX-License-Identifier: Apache-2.0
//! Netdevs that move into a pod, and their return to the host.

use integration::{Netns, Node, Snapshot};
use serde_json::{Value, json};
use std::fs;

/// Gives `eth1` many settings that a NIC of a cloud may have.
fn dress(node: &Node) {
    let host = &node.host;
    for line in [
        "link set dev eth1 down",
        "link set dev eth1 address 02:00:00:00:01:01",
        "link set dev eth1 mtu 1400 txqueuelen 777",
        "link set dev eth1 alias nic-of-the-cloud",
        "link property add dev eth1 altname enp59s0f2np2-by-another-name altname cloud1",
        "link set dev eth1 multicast off allmulticast on",
        "link set dev eth1 up",
        "address add 192.0.2.5/24 broadcast 192.0.2.255 dev eth1",
        "address add 192.0.2.6/24 dev eth1 label eth1:second",
        "address add 203.0.113.7/32 dev eth1 noprefixroute metric 50",
        "address add 2001:db8:5::5/64 dev eth1 nodad",
        "address add 2001:db8:6::6/128 dev eth1 nodad noprefixroute",
        "route add default via 192.0.2.1 dev eth1 metric 300",
        "route add 198.51.100.0/24 via 192.0.2.1 dev eth1 src 192.0.2.6 metric 120 mtu 1300",
        "route add 10.200.0.0/16 dev eth1 scope link metric 200",
        "route add 10.201.0.0/16 via 192.0.2.1 dev eth1 tos 0x10",
        "route add 10.202.0.0/16 via 192.0.2.1 dev eth1 mtu lock 1280 rto_min 50 initcwnd 30 quickack 1 congctl reno",
        "route add 224.0.0.0/4 dev eth1 scope link",
        "route add default via 192.0.2.1 dev eth1 table 1007",
        "route add 192.0.2.0/24 dev eth1 table 1007 scope link",
        "-6 route add default via fe80::1 dev eth1 metric 301",
        "-6 route add 2001:db8:77::/48 via 2001:db8:5::1 dev eth1 metric 99 advmss 1200",
        "-6 route add 2001:db8:78::/48 via 2001:db8:5::1 dev eth1 hoplimit 7 initrwnd 20",
        "-6 route add 2001:db8:88::/48 dev eth1 table 1007",
        "rule add from 192.0.2.5 table 1007 priority 1007",
        "-6 rule add from 2001:db8:5::5 table 1007 priority 1007",
    ] {
        host.ip(line);
    }
    for (key, value) in SETTINGS {
        host.set_sysctl(&format!("{}/conf/eth1/{}", key.0, key.1), value);
    }
}

const SETTINGS: [((&str, &str), &str); 6] = [
    (("ipv4", "rp_filter"), "2"),
    (("ipv4", "arp_ignore"), "1"),
    (("ipv4", "arp_announce"), "2"),
    (("ipv4", "accept_local"), "1"),
    (("ipv6", "accept_ra"), "0"),
    (("ipv6", "use_tempaddr"), "-1"),
];

/// Returns the route to `destination` in `table` of `netns`.
fn route(netns: &Netns, family: u8, table: &str, destination: &str) -> Option<Value> {
    let routes = netns.show(&format!("-{family} route show table {table}"));
    routes.into_iter().find(|route| route["dst"] == destination)
}

/// When a netdev of a route with several next hops moves, the kernel removes the whole route, also the next hops by
/// other netdevs.
#[test]
fn a_route_by_several_netdevs_is_reported_and_given_up() {
    let node = Node::with_rails(2);
    let pod = node.pod("pod");
    for line in [
        "address add 192.0.2.5/24 dev eth1",
        "address add 203.0.113.5/24 dev eth2",
        "route add 10.8.0.0/16 nexthop via 192.0.2.1 dev eth1 nexthop via 203.0.113.1 dev eth2",
        "nexthop add id 7 via 192.0.2.1 dev eth1",
        "route add 10.9.0.0/16 nhid 7",
    ] {
        node.host.ip(line);
    }
    let configuration = node.configuration(&["eth1"]);
    let added = node
        .invoke("ADD", "a", pod.path())
        .input(&configuration)
        .run();
    let message = "(10.8.0.0/16, 10.9.0.0/16) permanently in the move";
    assert!(added.stderr.contains(message), "{added}");
    let deleted = node
        .invoke("DEL", "a", pod.path())
        .input(&configuration)
        .run();
    assert!(deleted.status.success(), "{deleted}");
    for destination in ["10.8.0.0/16", "10.9.0.0/16"] {
        assert!(deleted.stderr.contains(destination), "{deleted}");
    }
    let note = node.state().join("given-up/eth1.json");
    let note = fs::read_to_string(note).expect("a note of what eth1 lacks");
    let note: Value = serde_json::from_str(&note).expect("JSON");
    assert_eq!(note["lacks"].as_array().map(Vec::len), Some(2), "{note}");
}

/// DEL restores settings that `rdma-cni` does not set and a pod can change. A netdev in dormant mode would carry no
/// packets for the next pod.
#[test]
fn numbers_that_a_pod_has_set_do_not_stay() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    node.host.ip("link set dev eth1 group 5");
    let before = Snapshot::of(&node.host);
    let configuration = node.configuration(&["eth1"]);
    node.add(&configuration, "a", &pod);
    for words in [
        "mode dormant",
        "group 7",
        "gso_max_size 20000 gso_max_segs 10",
    ] {
        pod.ip(&format!("link set dev rdma0 {words}"));
    }
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}

#[test]
fn addresses_and_routes_go_along_and_return_to_the_host() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    dress(&node);
    let before = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&["eth1"]);
    refused(
        &node,
        &configuration,
        &pod,
        (
            102,
            "eth1 is not moved into a pod: the node's default route uses it",
        ),
    );
    before.assert_restored(&node.host);
    configuration["mode"] = "move".into();
    let result = node.add(&configuration, "a", &pod);

    assert!(!node.host.has_link("eth1"));
    let link = pod.link("rdma0").expect("the netdev is in the pod");
    assert_eq!(link["address"], "02:00:00:00:01:01");
    assert_eq!(link["mtu"], 1400);
    assert!(
        link["flags"]
            .as_array()
            .expect("flags")
            .contains(&json!("UP")),
        "{link}"
    );
    let addresses = [
        "192.0.2.5/24",
        "192.0.2.6/24",
        "203.0.113.7/32",
        "2001:db8:5::5/64",
        "2001:db8:6::6/128",
    ];
    let mut kept = pod.addresses("rdma0");
    kept.sort();
    let mut sorted = addresses.map(str::to_owned).to_vec();
    sorted.sort();
    assert_eq!(kept, sorted);
    let answered = result["ips"]
        .as_array()
        .expect("ips")
        .iter()
        .map(|ip| &ip["address"]);
    let mut answered: Vec<_> = answered.filter_map(Value::as_str).collect();
    answered.sort_unstable();
    assert_eq!(answered, sorted, "{result}");

    let specific = route(&pod, 4, "main", "198.51.100.0/24").expect("a route by gateway");
    assert_eq!(
        (&specific["gateway"], &specific["prefsrc"]),
        (&json!("192.0.2.1"), &json!("192.0.2.6"))
    );
    assert_eq!(specific["dev"], "rdma0");
    assert!(
        route(&pod, 4, "main", "10.200.0.0/16").is_some(),
        "a route on the link"
    );
    assert!(
        route(&pod, 4, "main", "default").is_some(),
        "the default route"
    );
    assert!(
        route(&pod, 6, "main", "2001:db8:77::/48").is_some(),
        "an IPv6 route by gateway"
    );
    assert!(
        route(&pod, 6, "main", "default").is_some(),
        "the IPv6 default route"
    );

    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
    assert!(!pod.has_link("rdma0"));
    assert!(node.records().is_empty());
}

/// Asserts that ADD fails with this code and this message.
#[track_caller]
fn refused(node: &Node, configuration: &Value, pod: &Netns, (code, why): (u64, &str)) {
    let call = node.invoke("ADD", "a", pod.path());
    let text = call.input(configuration).run().error(code);
    assert!(text.contains(why), "{text}");
}

/// The default route leaves by eth1 and eth2, alternately. A macvlan of the host uses eth3.
#[test]
fn a_pattern_leaves_the_hosts_own_netdevs_where_they_are() {
    let node = Node::with_rails(5);
    let pod = node.pod("pod");
    for line in [
        "address add 192.0.2.1/24 dev eth1",
        "address add 198.51.100.1/24 dev eth2",
        "route add default nexthop via 192.0.2.2 dev eth1 nexthop via 198.51.100.2 dev eth2",
        "link add link eth3 name own0 type macvlan mode bridge",
    ] {
        node.host.ip(line);
    }
    let before = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&[]);
    configuration["devices"] = json!([{"netdev": "eth[123]"}]);
    let why = "eth1: the node's default route uses it, eth2: the node's default route uses it, \
               eth3: the macvlan own0 lies on it";
    refused(&node, &configuration, &pod, (100, why));
    before.assert_restored(&node.host);
    configuration["devices"] = json!([{"netdev": "eth*"}]);
    node.add(&configuration, "a", &pod);
    for netdev in ["eth1", "eth2", "eth3", "own0"] {
        assert!(node.host.has_link(netdev), "{netdev}");
    }
    for netdev in ["eth4", "eth5"] {
        assert!(!node.host.has_link(netdev), "{netdev}");
    }
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}

#[test]
fn a_netdev_that_was_down_returns_to_the_host_down() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    node.host.ip("link set dev eth1 down");
    node.host.ip("address add 192.0.2.5/24 dev eth1");
    let before = Snapshot::of(&node.host);
    let configuration = node.configuration(&["eth1"]);
    node.add(&configuration, "a", &pod);
    let link = pod.link("rdma0").expect("in the pod");
    assert!(
        link["flags"]
            .as_array()
            .expect("flags")
            .contains(&json!("UP")),
        "up in the pod: {link}"
    );
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}

#[test]
fn changes_of_the_pod_are_reverted() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    dress(&node);
    let before = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&["eth1"]);
    // the netdev has the default route
    configuration["mode"] = "move".into();
    node.add(&configuration, "a", &pod);
    for line in [
        "link set dev rdma0 down",
        "link set dev rdma0 name stolen",
        "link set dev stolen address 02:66:66:66:66:66",
        "link set dev stolen mtu 1280 txqueuelen 5 alias mine-now",
        "link property add dev stolen altname mine",
        "link property del dev stolen altname cloud1",
        "link set dev stolen multicast on allmulticast off promisc on arp off",
        "address flush dev stolen",
        "address add 10.66.66.66/8 dev stolen",
        "link set dev stolen up",
        "route add 10.77.0.0/16 dev stolen",
    ] {
        // The kernel may not have moved the alternative names; the pod then has none to remove.
        let succeeded = pod.ip_succeeds(line);
        assert!(succeeded || line.contains("altname"), "{line}");
    }
    pod.set_sysctl("ipv4/conf/stolen/rp_filter", "0");
    pod.set_sysctl("ipv4/conf/stolen/arp_ignore", "8");
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}

#[test]
fn the_pods_name_for_it_is_free_to_choose() {
    for (pattern, names) in [("roce%d", ["roce0", "roce1"]), ("n%dx", ["n0x", "n1x"])] {
        let node = Node::with_rails(2);
        let pod = node.pod("pod");
        let before = Snapshot::of(&node.host);
        let mut configuration = node.configuration(&["eth1", "eth2"]);
        configuration["interfaceName"] = pattern.into();
        let macs =
            ["eth1", "eth2"].map(|name| node.host.link(name).expect(name)["address"].clone());
        node.add(&configuration, "a", &pod);
        for (name, mac) in names.into_iter().zip(macs) {
            assert_eq!(pod.link(name).expect(name)["address"], mac);
        }
        node.del(&configuration, "a", &pod);
        before.assert_restored(&node.host);
    }
}

#[test]
fn a_fixed_name_is_enough_for_one_rail_and_refused_for_two() {
    let node = Node::with_rails(2);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&["eth1"]);
    configuration["interfaceName"] = "roce".into();
    node.add(&configuration, "a", &pod);
    assert!(pod.has_link("roce"));
    node.del(&configuration, "a", &pod);

    let mut configuration = node.configuration(&["eth1", "eth2"]);
    configuration["interfaceName"] = "roce".into();
    let text = node
        .invoke("ADD", "a", pod.path())
        .input(&configuration)
        .run()
        .error(7);
    assert!(
        text.contains("interfaceName") && text.contains("%d"),
        "{text}"
    );
    before.assert_restored(&node.host);
}

#[test]
fn selectors_take_globs_and_alternative_names() {
    let node = Node::with_rails(3);
    let pod = node.pod("pod");
    node.host
        .ip("link property add dev eth3 altname storage-nic");
    let before = Snapshot::of(&node.host);
    let configuration = node.configuration(&["eth[12]", "storage-*"]);
    let result = node.add(&configuration, "a", &pod);
    let interfaces = result["interfaces"].as_array().expect("interfaces");
    assert_eq!(interfaces.len(), 3, "{result}");
    for name in ["rdma0", "rdma1", "rdma2"] {
        assert!(pod.has_link(name), "{name}");
    }
    assert!(pod.has_link("lo"));
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}

#[test]
fn a_netdev_that_is_not_there_is_no_such_device() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let mut by_address = node.configuration(&[]);
    by_address["deviceID"] = "0000:ff:1f.7".into();
    by_address
        .as_object_mut()
        .expect("an object")
        .remove("devices");
    for (configuration, name) in [
        (node.configuration(&["eth9"]), "eth9"),
        (by_address, "0000:ff:1f.7"),
    ] {
        let text = node
            .invoke("ADD", "a", pod.path())
            .input(&configuration)
            .run()
            .error(100);
        assert!(text.contains(name), "{text}");
    }
    before.assert_restored(&node.host);
    assert!(node.records().is_empty());
}

#[test]
fn the_mtu_of_the_configuration_holds_in_the_pod_only() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&["eth1"]);
    configuration["mtu"] = 4200.into();
    let result = node.add(&configuration, "a", &pod);
    assert_eq!(pod.link("rdma0").expect("in the pod")["mtu"], 4200);
    assert_eq!(result["interfaces"][0]["mtu"], 4200);
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}

#[test]
fn the_log_goes_to_standard_error_and_to_its_file() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let file = node.directory().join("plugin.log");
    let mut configuration = node.configuration(&["eth1"]);
    configuration["log"] = json!({"level": "debug", "file": file});
    let outcome = node
        .invoke("ADD", "a", pod.path())
        .input(&configuration)
        .run();
    outcome.result();
    let logged = fs::read_to_string(&file).expect("the log's file");
    for log in [&outcome.stderr, &logged] {
        assert!(
            log.contains("eth1") && log.contains("rdma0"),
            "operations are not reported: {log:?}"
        );
    }
    node.invoke("DEL", "a", pod.path())
        .input(&configuration)
        .run()
        .silent();
    let longer = fs::read_to_string(&file).expect("the log's file");
    assert!(
        longer.starts_with(&logged) && longer.len() > logged.len(),
        "not appended: {longer}"
    );
}

#[test]
fn a_plan_shows_the_operations_and_changes_nothing() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    node.host.ip("address add 192.0.2.5/24 dev eth1");
    let before = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&["eth1"]);
    configuration["mtu"] = 1400.into();
    let call = node
        .invoke("ADD", "a", pod.path())
        .without("CNI_COMMAND")
        .argument("plan");
    let outcome = call.input(&configuration).run();
    assert!(outcome.status.success(), "{outcome}");
    let text = &outcome.stdout;
    let lines: Vec<&str> = text.lines().collect();
    let name = pod.name();
    let moved = format!("ip link set dev eth1 netns {name} name rdma0");
    assert!(lines.contains(&moved.as_str()), "no {moved:?} in {text}");
    for words in ["mtu 1400", "address replace 192.0.2.5/24", "rdma0 up"] {
        assert!(
            lines.iter().any(|line| line.contains(words)),
            "no {words:?} in {text}"
        );
    }
    assert!(
        lines
            .iter()
            .all(|line| line.starts_with("ip ") || line.starts_with("rdma ")),
        "{text}"
    );
    before.assert_restored(&node.host);
    assert!(node.records().is_empty());
    assert!(!pod.has_link("rdma0"));
}
