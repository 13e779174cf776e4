// SPDX-License-Identifier: Apache-2.0
//! Tests of routing rules. `Namespace::rules` contains only rules that select by source, or by source and destination.
//! `Namespace::tables` contains the tables of all rules and routes.

use crate::world::{World, with_node};
use rdma_netns::Rule;

fn rule(from: &str, prefix: u8, table: u32, priority: u32) -> Rule {
    Rule {
        from: from.parse().expect("an IP address"),
        prefix,
        to: None,
        table,
        priority,
    }
}

fn seen(world: &World) -> Vec<Rule> {
    world.observe().pod.expect("the pod").rules
}

#[test]
fn only_those_that_select_by_source_and_destination_are_shown() {
    with_node(|world| {
        for words in [
            "from 10.0.0.5 iif lo lookup 1000",
            "from 10.0.0.5 oif lo lookup 1000",
            "from 10.0.0.5 fwmark 7 lookup 1000",
            "from 10.0.0.5 to 10.1.0.0/16 tos 0x10 lookup 1000",
            "from 10.0.0.5 to 10.1.0.0/16 fwmark 7 lookup 1000",
            "from 10.0.0.5 tos 0x10 lookup 1000",
            "from 10.0.0.5 ipproto tcp lookup 1000",
            "from 10.0.0.5 lookup main suppress_prefixlength 0",
            "not from 10.0.0.5 lookup 1000",
            "from 10.0.0.5 blackhole",
            "to 10.0.0.5 lookup 1000",
            "from all lookup 1000",
        ] {
            for family in ["-4", "-6"] {
                let words = match family {
                    "-6" => words
                        .replace("10.0.0.5", "fd00::5")
                        .replace("10.1.0.0/16", "fd01::/64"),
                    _ => words.to_owned(),
                };
                world.pod_ip(&format!("{family} rule add {words}"));
            }
        }
        assert_eq!(seen(world), []);
        world.pod_ip("rule add from 10.0.0.5 lookup 1000 priority 7 protocol static");
        world.pod_ip("-6 rule add from fd00::5 to fd01::/64 lookup 1000 priority 7");
        let to = Some(("fd01::".parse().expect("an IP address"), 64));
        let narrow = Rule {
            to,
            ..rule("fd00::5", 128, 1000, 7)
        };
        assert_eq!(seen(world), [rule("10.0.0.5", 32, 1000, 7), narrow]);
    });
}

/// A plugin that chooses a free table must know all tables that are in use.
#[test]
fn the_tables_of_all_rules_and_routes_are_reported() {
    with_node(|world| {
        for words in [
            "rule add fwmark 7 lookup 1001",
            "-6 rule add iif lo lookup 1002",
            "route add local default dev lo table 1003",
            "-6 route add local default dev lo table 1004",
            "route add unreachable 10.0.0.0/8 table 1005",
            "-6 route add blackhole fd00::/8 table 70000",
        ] {
            world.pod_ip(words);
        }
        let tables = world.observe().pod.expect("the pod").tables;
        let chosen: Vec<u32> = tables.range(256..).copied().collect();
        assert_eq!(chosen, [1001, 1002, 1003, 1004, 1005, 70_000]);
    });
}
