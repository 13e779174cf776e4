// SPDX-License-Identifier: Apache-2.0
//! Tests of `from: parent`: prefixes and gateways of the rail's netdev.

use super::node::{Node, apart, call, shell};
use serde_json::{Value, json};
use std::{collections::HashSet, fs, io, net::Ipv6Addr};

pub(crate) fn parent_conf(node: &Node, ipam: Value, addresses: &[&str]) -> Value {
    let mut conf = node.conf(ipam);
    conf["ipam"]["from"] = "parent".into();
    conf["master"] = "bond1".into();
    conf["masterAddresses"] = json!(addresses);
    conf
}

#[test]
fn the_callers_fields_are_used() {
    let node = Node::new();
    let mut conf = parent_conf(
        &node,
        json!({"family": "both", "strategy": "sequential"}),
        &["2001:db8:1::10/64", "10.77.0.2/24"],
    );
    conf["masterRoutes"] = json!([
        {"dst": "0.0.0.0/0", "gw": "10.77.0.3"},
        {"dst": "::/0", "gw": "fe80::1"},
        {"dst": "10.99.0.0/16", "gw": "192.0.2.1"},
    ]);
    let result = call("ADD", "a", &conf).result();
    assert_eq!(
        result["ips"],
        json!([
            {"address": "10.77.0.1/24", "gateway": "10.77.0.3"},
            {"address": "2001:db8:1::2/64"},
        ])
    );
    assert_eq!(
        result["routes"],
        json!([{"dst": "0.0.0.0/0", "gw": "10.77.0.3"}, {"dst": "::/0", "gw": "fe80::1"}])
    );
    // no pod gets the gateway's address or the parent's own address, although the parent is not on this host
    assert_eq!(
        call("ADD", "b", &conf).addresses(),
        ["10.77.0.4/24", "2001:db8:1::3/64"]
    );
    let add = call("ADD", "c", &conf).env("CNI_ARGS", "IP=2001:db8:1::1");
    add.fails(
        7,
        "the requested address 2001:db8:1::1 is the usual address of a router in a prefix whose router is unknown: no \
         pod gets it; request another one",
    );
    conf["ipam"]["routes"] = json!([]);
    assert!(call("ADD", "c", &conf).result().get("routes").is_none());
    call("STATUS", "", &conf).ok();
    // DEL works without the parent
    let bare = node.conf(json!({"from": "parent"}));
    for container in ["a", "b", "c"] {
        call("DEL", container, &bare).ok();
    }
    assert_eq!(node.leases(), [""; 0]);
}

/// An IPv4 route can have an IPv6 gateway (RFC 8950). A pod without an IPv4 address cannot use such a route.
#[test]
fn a_route_to_a_family_without_address_is_left_out() {
    let routes = [
        json!({"dst": "::/0", "gw": "fe80::1"}),
        json!({"dst": "10.99.0.0/16", "gw": "fe80::1"}),
    ];
    for (family, expected) in [("ipv6", &routes[..1]), ("both", &routes)] {
        let node = Node::new();
        let addresses = ["2001:db8:1::10/64", "10.77.0.2/24"];
        let mut conf = parent_conf(&node, json!({"family": family}), &addresses);
        conf["masterRoutes"] = json!(routes);
        let result = call("ADD", "a", &conf).result();
        assert_eq!(result["routes"], json!(expected), "{family}");
    }
}

#[test]
fn rails_share_no_round_robin() {
    let node = Node::new();
    let rails = [&["2001:db8:1::10/64"][..], &["2001:db8:2::10/64"]];
    for container in ["a", "b", "c"] {
        let addresses: Vec<String> = rails
            .iter()
            .enumerate()
            .map(|(index, rail)| {
                let add = call(
                    "ADD",
                    container,
                    &parent_conf(&node, json!({"strategy": "sequential"}), rail),
                );
                add.env("CNI_IFNAME", &format!("rdma{index}")).address()
            })
            .collect();
        let last = addresses[0].strip_prefix("2001:db8:1::").unwrap();
        assert_eq!(addresses[1], format!("2001:db8:2::{last}"));
    }
}

#[test]
fn the_node_is_observed() {
    apart(|| {
        shell(
            "ip link add bond1 type veth peer name far
             ip link set bond1 up; ip link set far up
             ip addr add fe80::55/64 dev bond1 nodad
             ip addr add 2001:db8:5::1/128 dev bond1 nodad
             ip addr add 2001:db8:6::1/64 dev bond1 nodad preferred_lft 0
             ip addr add 2001:db8:8::10/64 dev bond1 nodad
             ip addr add 2001:db8:7::10/64 dev bond1 nodad
             ip addr add 10.77.0.2/24 dev bond1
             ip route add default via 10.77.0.1
             ip route add default via 10.77.0.9 metric 50 table 100
             ip -6 route add default via 2001:db8:7::9 dev bond1
             ip link property add dev bond1 altname roce0",
        );
        let node = Node::new();
        let mut conf = node.conf(json!({"from": "parent", "strategy": "sequential"}));
        conf["master"] = "roce0".into();
        let result = call("ADD", "a", &conf).result();
        let expected = json!({"address": "2001:db8:7::1/64", "gateway": "2001:db8:7::9"});
        assert_eq!(result["ips"], json!([expected]));
        assert_eq!(
            result["routes"],
            json!([{"dst": "::/0", "gw": "2001:db8:7::9"}])
        );
        conf["ipam"]["family"] = "both".into();
        let result = call("ADD", "b", &conf).result();
        assert_eq!(
            result["ips"],
            json!([
                {"address": "10.77.0.3/24", "gateway": "10.77.0.1"},
                {"address": "2001:db8:7::2/64", "gateway": "2001:db8:7::9"},
            ])
        );
        conf["runtimeConfig"] = json!({"ips": ["2001:db8:8::20"]});
        assert_eq!(
            call("ADD", "c", &conf).addresses(),
            ["10.77.0.4/24", "2001:db8:8::20/64"]
        );
        conf["runtimeConfig"] = json!({"ips": ["2001:db8:6::20"]});
        let (code, message) = call("ADD", "d", &conf).error();
        assert_eq!(code, 7);
        assert!(
            message.starts_with("the requested address 2001:db8:6::20 is not in 10.77.0.1-"),
            "{message}"
        );
    });
}

#[test]
fn tentative_duplicate_and_temporary_addresses_do_not_count() {
    apart(|| {
        shell(
            "ip link add bond1 type veth peer name far
             echo 1 >/proc/sys/net/ipv6/conf/bond1/accept_dad
             echo 2 >/proc/sys/net/ipv6/conf/bond1/use_tempaddr
             ip link set bond1 up; ip link set far up
             ip addr add 2001:db8:9::1/64 dev far nodad
             ip addr add 2001:db8:9::1/64 dev bond1 mngtmpaddr",
        );
        let node = Node::new();
        let mut conf = node.conf(json!({"from": "parent"}));
        conf["master"] = "bond1".into();
        let error = "bond1 (rail eth0) has no global IPv6 address on this host: give the netdev one (not temporary or \
                     deprecated) with a prefix of /126 or shorter, or choose another ipam.family";
        call("ADD", "a", &conf).fails(101, error);
        // until duplicate address detection has found the duplicate, and the temporary address is in use
        shell(
            "for _ in $(seq 600); do
                 [ -z \"$(ip addr show dev bond1 dadfailed)\" ] ||
                     ! ip addr show dev bond1 temporary | grep inet6 | grep -qv tentative || exit 0
                 sleep 0.1
             done; exit 1",
        );
        call("ADD", "a", &conf).fails(101, error);
        shell("ip addr flush dev bond1; ip addr add 2001:db8:9::2/64 dev bond1 nodad");
        call("ADD", "a", &conf).result();
    });
}

#[test]
fn an_address_that_is_not_global_does_not_count() {
    apart(|| {
        shell(
            "ip link add bond1 type veth peer name far
             ip link set bond1 up; ip link set far up
             ip addr add 169.254.7.1/16 dev bond1
             ip addr add 10.77.0.2/24 dev bond1 scope link",
        );
        let node = Node::new();
        let mut conf =
            node.conf(json!({"from": "parent", "family": "ipv4", "strategy": "sequential"}));
        conf["master"] = "bond1".into();
        call("ADD", "a", &conf).fails(
            101,
            "bond1 (rail eth0) has no global IPv4 address on this host: give the netdev one (not temporary or \
             deprecated) with a prefix of /30 or shorter, or choose another ipam.family",
        );
        shell("ip addr add 10.78.0.2/24 dev bond1");
        assert_eq!(call("ADD", "a", &conf).address(), "10.78.0.3");
    });
}

#[test]
fn missing_node_state_is_reported() {
    let node = Node::new();
    let none = parent_conf(&node, json!({}), &["fe80::1/64", "10.77.0.2/24"]);
    let error = "bond1 (rail net1) has no global IPv6 address on this host: give the netdev one (not temporary or \
                 deprecated) with a prefix of /126 or shorter, or choose another ipam.family";
    call("ADD", "a", &none)
        .env("CNI_IFNAME", "net1")
        .fails(101, error);
    let error = error.replace(" (rail net1)", "");
    call("STATUS", "", &none).fails(50, &format!("ADD cannot work: {error}"));
    let lone = parent_conf(
        &node,
        json!({"family": "both"}),
        &["2001:db8::1/128", "10.77.0.2/24"],
    );
    call("ADD", "a", &lone).fails(
        101,
        "bond1 (rail eth0) has no IPv6 prefix with room for pods: the prefix of 2001:db8::1/128 is too long; give the \
         netdev an address with a prefix of /126 or shorter",
    );
    let mut missing = node.conf(json!({"from": "parent"}));
    call("ADD", "a", &missing).fails(
        7,
        "master is missing: ipam.from \"parent\" needs the netdev whose prefixes are used; rdma-cni \
         passes it",
    );
    // STATUS succeeds: the caller passes the parent at each ADD
    call("STATUS", "", &missing).ok();
    missing["master"] = "nosuch0".into();
    call("ADD", "a", &missing).fails(
        7,
        "master: this host has no netdev \"nosuch0\", and masterAddresses is missing",
    );
    for (field, value, error) in [
        (
            "masterAddresses",
            json!(["2001:db8::1"]),
            "masterAddresses: [\"2001:db8::1\"] is not valid: must list addresses with their prefix \
             lengths",
        ),
        (
            "masterRoutes",
            json!([{"dst": "::/0"}]),
            "masterRoutes: [{\"dst\":\"::/0\"}] is not valid: must list {\"dst\", \"gw\"} objects, dst with its prefix length",
        ),
    ] {
        let mut conf = parent_conf(&node, json!({}), &["2001:db8:1::10/64"]);
        conf[field] = value;
        call("ADD", "a", &conf).fails(7, error);
    }
    assert_eq!(node.leases(), [""; 0]);
}

/// Nodes on one network share the network's prefix. With the strategy sequential, two nodes would assign the same
/// addresses.
#[test]
fn nodes_that_configure_nothing_give_different_addresses() {
    let nodes = [Node::new(), Node::new()];
    let first = |node: &Node| {
        let conf = parent_conf(
            node,
            json!({"family": "both"}),
            &["10.77.0.2/16", "fd00::2/64"],
        );
        call("ADD", "a", &conf)
            .env("CNI_ARGS", "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0")
            .addresses()
    };
    let [one, other] = [&nodes[0], &nodes[1]].map(first);
    assert_ne!(one[0], other[0]);
    assert_ne!(one[1], other[1]);
}

#[test]
fn neighbours_known_to_the_caller_are_avoided() {
    for strategy in ["stable", "sequential"] {
        let node = Node::new();
        let mut conf = parent_conf(&node, json!({"strategy": strategy}), &["2001:db8:1::10/64"]);
        let add = |container: &str, conf: &Value| {
            let args = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0";
            call("ADD", container, conf).env("CNI_ARGS", args).address()
        };
        let wanted = add("a", &conf);
        call("DEL", "a", &conf).ok();
        fs::remove_file(node.leases_dir().join("last_reserved_ip.2001:db8:1::_64"))
            .or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })
            .unwrap();
        conf["neighbourAddresses"] = json!([wanted, "2001:db8:1::99"]);
        assert_ne!(add("b", &conf), wanted, "{strategy}");
        // ADD assigns a requested address; the caller then probes it
        let requested = call("ADD", "c", &conf).env("CNI_ARGS", &format!("IP={wanted}"));
        assert_eq!(requested.address(), wanted);
        conf["neighbourAddresses"] = json!(["2001:db8:1::99/64"]);
        call("ADD", "d", &conf).fails(
            7,
            "neighbourAddresses: [\"2001:db8:1::99/64\"] is not valid: must list addresses",
        );
    }
}

/// An entry can remain in a neighbour table for weeks after the machine has disappeared.
#[test]
fn a_neighbours_address_is_given_only_when_nothing_else_is_left() {
    let node = Node::new();
    let mut conf = parent_conf(&node, json!({"family": "ipv4"}), &["10.77.0.2/29"]);
    // .1 is a router's usual address, .2 is the host's
    conf["neighbourAddresses"] = json!(["10.77.0.3", "10.77.0.4", "10.77.0.5"]);
    assert_eq!(call("ADD", "a", &conf).address(), "10.77.0.6");
    let other = call("ADD", "b", &conf).address();
    assert!(
        ["10.77.0.3", "10.77.0.4", "10.77.0.5"].contains(&&*other),
        "{other}"
    );
}

#[test]
fn the_nodes_own_neighbours_are_avoided() {
    apart(|| {
        shell(
            "ip link add bond1 type veth peer name far
             ip link set bond1 up; ip link set far up
             ip addr add 10.77.0.2/24 dev bond1
             ip neigh add 10.77.0.3 lladdr 02:00:00:00:99:03 nud stale dev bond1
             ip neigh add 10.77.0.4 nud failed dev bond1
             ip neigh add 10.77.0.5 lladdr 02:00:00:00:99:05 nud stale dev far",
        );
        let node = Node::new();
        let mut conf =
            node.conf(json!({"from": "parent", "family": "ipv4", "strategy": "sequential"}));
        conf["master"] = "bond1".into();
        for (container, address) in [("a", "10.77.0.4"), ("b", "10.77.0.5"), ("c", "10.77.0.6")] {
            assert_eq!(call("ADD", container, &conf).address(), address);
        }
    });
}

/// After a conflict, a node continues its sequence at a random address. Nodes that share a range then assign different
/// addresses.
#[test]
fn counting_goes_on_elsewhere_after_a_conflict() {
    let mut seen = HashSet::new();
    for _ in 0..4 {
        let node = Node::new();
        let mut conf = parent_conf(
            &node,
            json!({"strategy": "sequential"}),
            &["2001:db8:1::10/64"],
        );
        assert_eq!(call("ADD", "a", &conf).address(), "2001:db8:1::2");
        conf["conflicts"] = json!(["2001:db8:1::2"]);
        call("DEL", "a", &conf).ok();
        let next = call("ADD", "b", &conf).address();
        assert!(seen.insert(next.clone()), "{next} again");
        // the addresses after this one are sequential again
        let last: Ipv6Addr = next.parse().unwrap();
        let after = Ipv6Addr::from(u128::from(last) + 1);
        assert_eq!(call("ADD", "c", &conf).address(), after.to_string());
    }
}

/// If all other addresses are leased, ADD tries again an address that another machine used a while ago.
#[test]
fn a_conflict_counts_less_as_time_goes_by() {
    let node = Node::new();
    let conf = parent_conf(&node, json!({"family": "ipv4"}), &["10.77.0.2/29"]);
    let given: Vec<String> = ["a", "b", "c", "d"]
        .map(|container| call("ADD", container, &conf).address())
        .into();
    let mut conflict = conf.clone();
    conflict["conflicts"] = json!([given[0]]);
    call("DEL", "a", &conflict).ok();
    let (code, message) = call("ADD", "e", &conf).error();
    assert_eq!(code, 11, "{message}");
    node.age_conflict(&given[0], 61);
    assert_eq!(call("ADD", "e", &conf).address(), given[0]);
}
