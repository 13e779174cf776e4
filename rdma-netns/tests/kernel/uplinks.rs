// SPDX-License-Identifier: Apache-2.0
//! Tests of the netdevs by which a node is reachable, by routes and rules that the kernel reports.

use crate::world::{World, with_node};
use std::fs;

/// Runs `test` with a node that has its own NIC (`eth0`) and two rails.
fn with_rails(test: impl FnOnce(&World) + Send) {
    with_node(|world| {
        for (index, name) in ["eth0", "rail0", "rail1"].into_iter().enumerate() {
            world.ip(&format!("link add {name} type veth peer name far{index}"));
            for up in [name, &format!("far{index}")] {
                world.ip(&format!("link set {up} up"));
            }
            world.ip(&format!("address add 10.0.{index}.5/24 dev {name}"));
            world.ip(&format!("address add fd00:{index}::5/64 dev {name} nodad"));
        }
        test(world);
    });
}

#[track_caller]
fn are(world: &World, servers: &[&str], expected: &[&str]) {
    let servers: Vec<_> = servers
        .iter()
        .map(|it| it.parse().expect("an address"))
        .collect();
    let host = world.observe().host;
    let found: Vec<_> = host
        .uplinks(&servers)
        .keys()
        .filter_map(|index| host.link_by_index(*index))
        .map(|link| link.name.to_string())
        .collect();
    assert_eq!(found, expected, "{servers:?}");
}

/// With `nexthop_compat_mode` 0, the kernel reports a route with a nexthop object without the netdev.
#[test]
fn default_routes_by_nexthop_objects() {
    for compatible in ["1", "0"] {
        for (family, objects) in [
            ("-4", ["via 10.0.0.1 dev eth0", "via 10.0.1.1 dev rail0"]),
            ("-6", ["via fd00:0::1 dev eth0", "via fd00:1::1 dev rail0"]),
        ] {
            with_rails(|world| {
                let setting = "/proc/sys/net/ipv4/nexthop_compat_mode";
                fs::write(setting, compatible).expect("Linux 5.8");
                for (id, object) in objects.into_iter().enumerate() {
                    world.ip(&format!("nexthop add id {} {object}", id + 1));
                }
                world.ip("nexthop add id 3 group 1/2");
                are(world, &[], &[]);
                world.ip(&format!("{family} route add default nhid 1"));
                are(world, &[], &["eth0"]);
                world.ip(&format!("{family} route replace default nhid 3"));
                are(world, &[], &["eth0", "rail0"]);
            });
        }
    }
}

/// If the kernel uses a table for packets of any source, the table's default route counts as the node's.
#[test]
fn default_routes_in_tables_that_a_rule_of_the_host_leads_to() {
    let with_family = |family: &str, rules: &[&str], expected: &[&str]| {
        with_rails(|world| {
            let by_family = |words: &str| match family {
                "-4" => words.to_owned(),
                _ => words
                    .replace("10.0.0.0/8", "fd00::/16")
                    .replace("10.0.", "fd00:")
                    .replace(".5", "::5")
                    .replace(".1", "::1"),
            };
            for line in [
                "route add default via 10.0.1.1 dev rail0 table 100",
                "route add default via 10.0.2.1 dev rail1 table 101",
            ] {
                world.ip(&format!("{family} {}", by_family(line)));
            }
            for rule in rules {
                world.ip(&format!("{family} rule add {}", by_family(rule)));
            }
            are(world, &[], expected);
            // a default route in the main table counts too, because kubelet takes the node's address from it
            world.ip(&format!(
                "{family} {}",
                by_family("route add default via 10.0.0.1 dev eth0")
            ));
            let mut expected = expected.to_vec();
            expected.insert(0, "eth0");
            are(world, &[], &expected);
        });
    };
    for family in ["-4", "-6"] {
        for (rules, expected) in [
            (&["from all lookup 100"][..], &["rail0"][..]),
            (&["fwmark 7 lookup 100"], &["rail0"]),
            (&["iif lo lookup 100"], &["rail0"]),
            (&["not fwmark 7 lookup 100"], &["rail0"]),
            (&["ipproto tcp dport 443 lookup 100"], &["rail0"]),
            (
                &["fwmark 7 lookup 101 pref 10", "lookup 100 pref 20"],
                &["rail0", "rail1"],
            ),
            // a table behind a rule that leads all packets to another table
            (&["lookup 100 pref 10", "lookup 101 pref 20"], &["rail0"]),
            // each rail's own table
            (
                &[
                    "from 10.0.1.5 lookup 100",
                    "to 10.0.1.5 lookup 100",
                    "from 10.0.2.5 lookup 101",
                    "iif rail1 lookup 101",
                    "oif rail1 lookup 101",
                ],
                &[],
            ),
            (&["lookup 100 suppress_prefixlength 0"], &[]),
        ] {
            with_family(family, rules, expected);
        }
    }
}

/// Some rules and routes lead only to the network of the API server.
#[test]
fn tables_by_which_an_api_server_is_reached() {
    with_rails(|world| {
        for line in [
            "route add default via 10.0.0.1 dev eth0",
            "route add default via 10.0.1.1 dev rail0 table 100",
            "route add 192.0.2.0/24 via 10.0.2.1 dev rail1 table 101",
        ] {
            world.ip(line);
        }
        are(world, &["192.0.2.9"], &["eth0"]);
        world.ip("rule add to 192.0.2.0/25 lookup 100 pref 20");
        are(world, &["192.0.2.9"], &["eth0", "rail0"]);
        are(world, &["192.0.2.200"], &["eth0"]);
        world.ip("rule add lookup 101 pref 10");
        are(world, &["192.0.2.9"], &["eth0", "rail1"]);
    });
}
