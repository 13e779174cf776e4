// SPDX-License-Identifier: Apache-2.0
//! Rules: what selects by more than a source is left out.

use crate::world::{World, with_node};
use rdma_netns::Rule;

fn rule(from: &str, prefix: u8, table: u32, priority: u32) -> Rule {
    Rule {
        from: from.parse().expect("an IP address"),
        prefix,
        table,
        priority,
    }
}

fn seen(world: &World) -> Vec<Rule> {
    world.observe().pod.expect("the pod").rules
}

#[test]
fn only_those_that_select_by_source_alone_are_shown() {
    with_node(|world| {
        for words in [
            "from 10.0.0.5 iif lo lookup 1000",
            "from 10.0.0.5 oif lo lookup 1000",
            "from 10.0.0.5 fwmark 7 lookup 1000",
            "from 10.0.0.5 to 10.1.0.0/16 lookup 1000",
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
        assert_eq!(seen(world), [rule("10.0.0.5", 32, 1000, 7)]);
    });
}
