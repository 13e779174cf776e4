// SPDX-License-Identifier: Apache-2.0
//! Tests of `from: parent` with bounds: which part of each prefix pods get.

use super::{
    node::{Node, call},
    parent::parent_conf,
};
use serde_json::json;

/// Nodes whose rails have different prefixes can have the same configuration.
#[test]
fn bounds_are_relative_to_each_prefix() {
    for (address, given) in [
        ("10.77.1.2/24", ["10.77.1.50", "10.77.1.51", "10.77.1.53"]),
        ("10.77.0.9/16", ["10.77.0.50", "10.77.0.51", "10.77.0.53"]),
        (
            "10.77.4.66/26",
            ["10.77.4.114", "10.77.4.115", "10.77.4.117"],
        ),
    ] {
        let node = Node::new();
        let conf = parent_conf(
            &node,
            json!({"family": "ipv4", "strategy": "sequential", "rangeStart": "+50", "rangeEnd": "-9",
                   "exclude": ["+52"]}),
            &[address],
        );
        for (container, ip) in ["a", "b", "c"].into_iter().zip(given) {
            assert_eq!(call("ADD", container, &conf).address(), ip);
        }
    }
}

#[test]
fn addresses_outside_the_bounds_are_never_assigned() {
    let node = Node::new();
    let conf = parent_conf(
        &node,
        json!({"family": "ipv4", "rangeStart": "+50", "rangeEnd": "+53", "exclude": ["+51"]}),
        &["10.77.0.2/24"],
    );
    let mut given: Vec<String> = ["a", "b", "c"]
        .map(|container| call("ADD", container, &conf).address())
        .into();
    given.sort();
    assert_eq!(given, ["10.77.0.50", "10.77.0.52", "10.77.0.53"]);
    call("ADD", "d", &conf).fails(
        11,
        "no address is free in 10.77.0.50-10.77.0.53 of 10.77.0.0/24: 3 addresses are in use, and the others are never assigned",
    );
    for (ip, error) in [
        (
            "10.77.0.51",
            "the requested address 10.77.0.51 is excluded by ipam.exclude: no pod gets it; request another one",
        ),
        (
            "10.77.0.54",
            "the requested address 10.77.0.54 is not in 10.77.0.50-10.77.0.53 of 10.77.0.0/24",
        ),
    ] {
        let add = call("ADD", "d", &conf).env("CNI_ARGS", &format!("IP={ip}"));
        add.fails(7, error);
    }
}

#[test]
fn bounds_of_both_families_are_their_own() {
    let node = Node::new();
    let conf = parent_conf(
        &node,
        json!({"family": "both", "strategy": "sequential",
               "rangeStart": {"ipv4": "+50", "ipv6": "+0x1000"},
               "exclude": {"ipv6": ["+0x1000"]}}),
        &["2001:db8:1::10/64", "10.77.0.2/24"],
    );
    assert_eq!(
        call("ADD", "a", &conf).addresses(),
        ["10.77.0.50/24", "2001:db8:1::1001/64"]
    );
}

/// The bounds must exclude each node's own address. Then no node gives a pod the address of another node, even while
/// that node is off.
#[test]
fn bounds_with_the_nodes_own_address_are_refused() {
    let node = Node::new();
    let bounded = |ipam| parent_conf(&node, ipam, &["10.77.0.77/24"]);
    let error = "bond1 (rail eth0): its own address 10.77.0.77 is among the addresses of pods: other nodes would give \
                 it to a pod while this node is off; set ipam.rangeStart and ipam.rangeEnd so that it is outside, or \
                 add 10.77.0.77 to ipam.exclude";
    // the blocks divide the whole prefix
    let blocks = bounded(json!({"family": "ipv4", "perNode": 8}));
    call("ADD", "a", &blocks).fails(101, error);
    let mut conf = bounded(json!({"family": "ipv4", "rangeStart": "+50"}));
    call("ADD", "a", &conf).fails(101, error);
    let status = format!("ADD cannot work: {}", error.replace(" (rail eth0)", ""));
    call("STATUS", "", &conf).fails(50, &status);
    conf["ipam"]["exclude"] = json!(["+70..+79"]);
    call("ADD", "a", &conf).result();
}

/// The nodes cannot communicate: each node uses the block of its own address.
#[test]
fn nodes_with_blocks_give_different_addresses() {
    let ipam =
        json!({"family": "ipv4", "strategy": "sequential", "rangeStart": "+128", "perNode": 8});
    for (own, given) in [("10.77.0.1", "10.77.0.136"), ("10.77.0.2", "10.77.0.144")] {
        let node = Node::new();
        let conf = parent_conf(&node, ipam.clone(), &[&format!("{own}/24")]);
        assert_eq!(call("ADD", "a", &conf).address(), given);
    }
    let node = Node::new();
    call("ADD", "a", &parent_conf(&node, ipam, &["10.77.0.16/24"])).fails(
        101,
        "bond1 (rail eth0): its own address 10.77.0.16 is number 16 in the prefix 10.77.0.0/24, and block 16 of \
         ipam.perNode 8 ends after 10.77.0.254: lower ipam.perNode, or give the netdev a lower address",
    );
}

#[test]
fn bounds_that_do_not_fit_are_reported_with_the_prefix() {
    let node = Node::new();
    for (ipam, error) in [
        (
            json!({"rangeEnd": "+300"}),
            "bond1 (rail eth0): ipam.rangeEnd +300 is outside the prefix 10.77.0.0/28",
        ),
        (
            json!({"rangeStart": "-16"}),
            "bond1 (rail eth0): ipam.rangeStart -16 is outside the prefix 10.77.0.0/28",
        ),
        (
            json!({"exclude": ["+9..+16"]}),
            "bond1 (rail eth0): ipam.exclude +16 is outside the prefix 10.77.0.0/28",
        ),
        (
            json!({"rangeStart": "+9", "rangeEnd": "-9"}),
            "bond1 (rail eth0): ipam.rangeEnd: in the prefix 10.77.0.0/28, the end -9 is before the start +9",
        ),
        // the default of the other bound is the first or the last usable address
        (
            json!({"rangeStart": "-0"}),
            "bond1 (rail eth0): ipam.rangeStart -0 leaves no address in the prefix 10.77.0.0/28: the default of \
             ipam.rangeEnd is -1",
        ),
        (
            json!({"rangeEnd": "+0"}),
            "bond1 (rail eth0): ipam.rangeEnd +0 leaves no address in the prefix 10.77.0.0/28: the default of \
             ipam.rangeStart is +1",
        ),
    ] {
        let mut conf = parent_conf(&node, ipam, &["10.77.0.2/28"]);
        conf["ipam"]["family"] = "ipv4".into();
        call("ADD", "a", &conf).fails(101, error);
    }
    let v6 = parent_conf(&node, json!({"rangeEnd": "+0"}), &["fd77::2/64"]);
    call("ADD", "a", &v6).fails(
        101,
        "bond1 (rail eth0): ipam.rangeEnd +0 leaves no address in the prefix fd77::/64: the default of ipam.rangeStart \
         is +1",
    );
    assert_eq!(node.leases(), [""; 0]);
}
