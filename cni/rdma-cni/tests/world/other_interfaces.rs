// SPDX-License-Identifier: Apache-2.0
//! Tests of tables and rules of interfaces that other plugins made, with any failure and in any order
//! of DELs.

use crate::{
    leases::{Leases, link_of},
    node::{Node, Pod},
    routing::{rules, with_primary},
};
use fake_kernel::Verdict;
use nix::errno::Errno;
use serde_json::{Value, json};

/// Returns the destinations of the routes of `eth0` in `table`.
fn ways(node: &Node, pod: &Pod, table: u32) -> Vec<String> {
    let routes = link_of(node, pod, "eth0").routes;
    let own = routes.iter().filter(|it| it.table == table);
    own.map(|it| format!("{}/{}", it.destination, it.prefix))
        .collect()
}

/// Returns the rules for the addresses of `eth0`.
fn of_eth0(node: &Node, pod: &Pod) -> Vec<String> {
    let mut rules = rules(node, pod);
    rules.retain(|it| it.contains("10.0.9.9") || it.contains("fd00::99"));
    rules
}

#[test]
fn one_rail_and_the_pods_own_interface_have_a_table_each() {
    for tables in [true, false] {
        let leases = Leases::new(1);
        let node = &leases.node;
        let pod = with_primary(&leases, 0);
        let before = node.snapshot();
        let config = match tables {
            true => json!({}),
            false => json!({ "routing": { "tableBase": 0 } }),
        };
        let config = leases.config(config);
        let result = node.add(&pod, &config).must_succeed();
        let expected: &[&str] = match tables {
            true => &[
                "from 10.0.0.7/32 lookup 1000 priority 1000",
                "from 10.0.9.9/32 to 172.16.0.0/12 lookup 1001 priority 32765",
                "from 10.0.9.9/32 to 10.0.0.0/16 lookup 1001 priority 32765",
                "from fd00::7/128 lookup 1000 priority 1000",
                "from fd00::99/128 to fd00::/64 lookup 1001 priority 32765",
            ],
            false => &[],
        };
        assert_eq!(rules(node, &pod), expected);
        let mut found = ways(node, &pod, 1001);
        found.retain(|it| !it.starts_with("fe80"));
        found.sort();
        let networks = ["0.0.0.0/0", "10.0.0.0/16", "::/0", "fd00::/64"];
        assert_eq!(found, if tables { networks.to_vec() } else { vec![] });
        leases.check(&pod, &config, &result).must_succeed();
        node.del(&pod, &config).must_succeed();
        leases.must_be(&before, "after DEL");
    }
}

/// The kernel refuses one change of ADD, or two changes: one of ADD, and one of the restore after it.
#[test]
fn any_change_of_add_is_refused() {
    let mut refused = 0;
    for at in 1.. {
        for undo in [0, 1, 3, 5] {
            let leases = Leases::new(1);
            let node = &leases.node;
            let pod = with_primary(&leases, 0);
            let before = node.snapshot();
            let config = leases.config(json!({ "probe": "off" }));
            node.script(
                move |number| match number == at || undo > 0 && number == at + undo {
                    true => Verdict::Refuse(Errno::EIO),
                    false => Verdict::Proceed,
                },
            );
            let code = node.add(&pod, &config).code();
            if node.kernel.journal().len() < at {
                assert!(refused > 20, "{refused}");
                return;
            }
            node.kernel.begin();
            if code != 0 {
                refused += 1;
                leases.must_be(&before, &format!("changes {at} and {undo} after it"));
            }
        }
    }
}

#[test]
fn any_change_of_del_is_refused_or_the_last() {
    for verdict in [
        Verdict::Refuse(Errno::EIO),
        Verdict::DieBefore,
        Verdict::DieAfter,
    ] {
        for at in 1.. {
            let leases = Leases::new(2);
            let node = &leases.node;
            let pod = with_primary(&leases, 0);
            let before = node.snapshot();
            let config = leases.config(json!({}));
            node.add(&pod, &config).must_succeed();
            assert_eq!(of_eth0(node, &pod).len(), 5);
            let was_made = node.kill(at, verdict, |node| drop(node.del(&pod, &config)));
            node.del(&pod, &config).must_succeed();
            leases.must_be(&before, &format!("{verdict:?} at change {at}"));
            if !was_made {
                assert!(at > 10);
                break;
            }
        }
    }
}

#[test]
fn an_add_that_is_killed_leaves_nothing() {
    for at in 1.. {
        let leases = Leases::new(1);
        let node = &leases.node;
        let pod = with_primary(&leases, 0);
        let before = node.snapshot();
        let config = leases.config(json!({}));
        let was_killed = node.kill(at, Verdict::DieAfter, |node| drop(node.add(&pod, &config)));
        node.del(&pod, &config).must_succeed();
        leases.must_be(&before, &format!("killed after change {at}"));
        if !was_killed {
            break;
        }
    }
}

/// Returns the configuration of the pod's attachment for `bond`, in a network of its own.
fn one_bond(leases: &Leases, bond: usize) -> Value {
    leases.config(json!({
        "name": format!("net{bond}"), "interfaceName": format!("rdma{bond}"),
        "devices": [{ "netdev": format!("bond{bond}") }],
    }))
}

#[test]
fn attachments_of_one_pod_have_rules_of_their_own() {
    let orders = [[0, 1, 2], [2, 1, 0], [1, 0, 2]];
    for order in orders {
        let leases = Leases::new(3);
        let node = &leases.node;
        let pod = with_primary(&leases, 0);
        let before = node.snapshot();
        let pods = ["net1", "net2", "net3"].map(|ifname| pod.attachment(ifname));
        let configs = [0, 1, 2].map(|bond| one_bond(&leases, bond));
        let results: Vec<Value> = (pods.iter().zip(&configs))
            .map(|(pod, config)| node.add(pod, config).must_succeed())
            .collect();
        // each attachment has two IPv4 networks and one IPv6 network
        let mut expected = of_eth0(node, &pod);
        assert_eq!(expected.len(), 3 * 3, "{expected:?}");
        assert_eq!(rules(node, &pod).len(), 3 * 3 + 3 * 2);
        for (place, number) in order.into_iter().enumerate() {
            for left in &order[place..] {
                let (pod, config, result) = (&pods[*left], &configs[*left], &results[*left]);
                leases.check(pod, config, result).must_succeed();
            }
            node.del(&pods[number], &configs[number]).must_succeed();
            let own = format!("lookup {} ", 1001 + 2 * number);
            expected.retain(|it| !it.contains(&own));
            assert_eq!(of_eth0(node, &pod), expected, "{order:?}");
        }
        assert_eq!(expected, [""; 0]);
        leases.must_be(&before, "after all");
    }
}

/// A failed ADD does not remove rules of another attachment.
#[test]
fn a_failed_attachment_leaves_the_rules_of_another() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = with_primary(&leases, 0);
    let (first, second) = (one_bond(&leases, 0), one_bond(&leases, 1));
    let result = node.add(&pod, &first).must_succeed();
    let before = node.snapshot();
    let other = pod.attachment("net2");
    for at in 1.. {
        node.script(move |number| match number == at {
            true => Verdict::Refuse(Errno::EIO),
            false => Verdict::Proceed,
        });
        let code = node.add(&other, &second).code();
        let was_made = node.kernel.journal().len() >= at;
        node.kernel.begin();
        node.del(&other, &second).must_succeed();
        assert_eq!(
            before.differences(&node.snapshot()),
            [""; 0],
            "{at}: {code}"
        );
        leases.check(&pod, &first, &result).must_succeed();
        if !was_made {
            break;
        }
    }
}
