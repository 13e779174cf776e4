// SPDX-License-Identifier: Apache-2.0
//! Tests of several pods on one NIC, several networks of one pod, and entries of other programs.

use crate::{
    leases::Leases,
    node::{Node, Pod, address, host_change, settle},
    smc::{ask, entry, id_of, one_rail_with_smc, record, seen},
};
use fake_kernel::{Verdict, World};
use rdma_netns::{LinkChange, NetnsSide, Op, RdmaMode};
use serde_json::{Value, json};

/// Returns an answer of IPAM with the address `address`.
fn answer(address: &str) -> Value {
    json!({ "cniVersion": "1.1.0", "ips": [{ "address": address }] })
}

/// Makes pods for [`config`]. IPAM gives each an address in a subnet of its own. The RDMA device has one GID, like
/// erdma's.
pub(crate) fn pods(leases: &Leases, names: &[&str]) -> Vec<Pod> {
    leases.node.kernel.with(|world| world.gid_table_size = 1);
    let made = names.iter().enumerate().map(|(number, name)| {
        leases.gives(
            &format!("{name}.rdma0"),
            &answer(&format!("10.{}.0.7/24", 50 + number)),
        );
        leases.node.pod(name)
    });
    made.collect()
}

pub(crate) fn config(leases: &Leases) -> Value {
    let mut config = leases.config(json!({ "devices": [{ "netdev": "bond0" }] }));
    ask(&mut config);
    config
}

#[test]
fn the_last_of_three_pods_takes_the_ports_entry_away() {
    // the pods end in several orders, by DEL and by GC
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let leases = Leases::new(1);
        let node = &leases.node;
        let pods = pods(&leases, &["a", "b", "c"]);
        let before = node.snapshot();
        let config = config(&leases);
        let id = id_of(node, "bond0");
        for pod in &pods {
            node.add(pod, &config).must_succeed();
            let record = record(node, pod);
            assert_eq!(record["smc"]["state"], "active", "{record}");
            assert_eq!(record["smc"]["entries"][0]["at"], "host", "{record}");
        }
        let port = entry(&id, None, Some("mlx5_bond_0"));
        for (number, pod) in order.into_iter().enumerate() {
            assert_eq!(seen(node, None).host, std::slice::from_ref(&port));
            assert_eq!(seen(node, None).ueids, ["RACK-1"]);
            match number {
                1 => drop(node.gc(&[&pods[order[2]]], &config).must_succeed()),
                _ => drop(node.del(&pods[pod], &config).must_succeed()),
            }
        }
        leases.must_be(&before, "after the last one");
    }
}

#[test]
fn the_last_of_three_namespaces_dies_and_the_next_add_takes_the_entry_away() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let other = node.pod("other");
    leases.gives("other.rdma0", &answer("10.99.0.7/24"));
    let before = node.snapshot();
    let pods = pods(&leases, &["a", "b", "c"]);
    let config = config(&leases);
    for pod in &pods {
        node.add(pod, &config).must_succeed();
    }
    for pod in &pods {
        node.kernel.with(|world| world.unmount(&pod.netns));
    }
    let plain = leases.config(json!({ "devices": [{ "netdev": "bond0" }] }));
    node.add(&other, &plain).must_succeed();
    let found = seen(node, None);
    assert!(found.host.is_empty() && found.ueids.is_empty(), "{found:?}");
    node.del(&other, &plain).must_succeed();
    leases.must_be(&before, "after all");
}

/// A pod's connections stay TCP, by the pnet id `TCPONLY`, if the kernel would use another pod's GID for them. Without
/// a pnet id the kernel would use SMC-R. With `smcr: on`, ADD fails.
#[test]
fn a_pod_behind_another_ones_gid_is_kept_from_it() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let (first, second) = (node.pod("a"), node.pod("b"));
    leases.gives("a.rdma0", &answer("10.50.0.7/24"));
    leases.gives("b.rdma0", &answer("10.50.0.8/24"));
    let before = node.snapshot();
    let mut config = config(&leases);
    node.add(&first, &config).must_succeed();
    assert_eq!(record(node, &first)["smc"]["state"], "active");
    config["smcr"] = "on".into();
    let message = node.add(&second, &config).must_fail(106);
    assert!(
        message.contains("10.50.0.7") && message.contains("container a"),
        "{message}"
    );
    config["smcr"] = "annotation".into();
    node.add(&second, &config).must_succeed();
    assert_eq!(record(node, &second)["smc"]["state"], "off");
    assert_eq!(
        seen(node, Some(&second)).pod,
        [entry("TCPONLY", Some("rdma0"), None)]
    );
    // the third pod's own GID does not help: the kernel would use the first pod's link groups for the third pod's
    // connections
    let third = node.pod("c");
    leases.gives("c.rdma0", &answer("10.51.0.9/32"));
    node.add(&third, &config).must_succeed();
    let record_of_third = record(node, &third);
    let reason = record_of_third["smc"]["reason"].as_str().unwrap();
    assert!(
        reason.contains("container a") && reason.contains("link group"),
        "{reason}"
    );
    assert_eq!(
        seen(node, Some(&third)).pod,
        [entry("TCPONLY", Some("rdma0"), None)]
    );
    for pod in [&third, &first] {
        node.del(pod, &config).must_succeed();
    }
    node.add(&third, &config).must_succeed();
    assert_eq!(record(node, &third)["smc"]["state"], "active");
    for pod in [&second, &third] {
        node.del(pod, &config).must_succeed();
    }
    node.kernel.with(|world| world.unmount(&third.netns));
    leases.must_be(&before, "after all");
}

/// CHECK only logs a warning about a later pod's address, but reports an address of the host. The later pod's address
/// may be the first pod's, if the later pod's parent is a VLAN.
#[test]
fn a_check_does_not_fail_by_a_later_pods_address() {
    for (later, parent) in [("10.50.0.8/24", "bond0"), ("10.50.0.7/24", "bond0.100")] {
        let mut world = World::new(Some(RdmaMode::Shared));
        world.plug_bond(0);
        world.add_vlan("bond0", 100);
        settle(&mut world);
        let leases = Leases::on(Node::with(world));
        let node = &leases.node;
        let up = host_change("bond0.100", LinkChange::Up(true));
        node.change(None, &up);
        let (first, second) = (node.pod("a"), node.pod("b"));
        leases.gives("a.rdma0", &answer("10.50.0.7/24"));
        leases.gives("b.rdma0", &answer(later));
        let config = config(&leases);
        let result = node.add(&first, &config).must_succeed();
        assert_eq!(record(node, &first)["smc"]["state"], "active");
        let plain = leases.config(json!({ "devices": [{ "netdev": parent }] }));
        node.add(&second, &plain).must_succeed();
        let check = || leases.check(&first, &config, &result);
        check().must_succeed();
        let of_host = address("10.50.0.9/24");
        node.change(None, &host_change("bond0", LinkChange::AddAddress(of_host)));
        let message = check().must_fail(999);
        assert!(
            message.contains("SMC-R of rdma0") && message.contains("bond0 on the host"),
            "{message}"
        );
    }
}

/// SMC-Rv1 would use the parent's GID, which does not identify the pod.
#[test]
fn a_pod_that_smc_rv1_would_carry_by_the_parents_gid_stays_tcp() {
    let mut world = World::new(Some(RdmaMode::Shared));
    world.gids_of_roce_v1 = true;
    world.plug_bond(0);
    settle(&mut world);
    let leases = Leases::on(Node::with(world));
    let node = &leases.node;
    leases.gives("a.rdma0", &answer("10.50.0.7/24"));
    let pod = node.pod("a");
    let before = node.snapshot();
    let mut config = config(&leases);
    config["smcUeid"] = Value::Null;
    config["smcr"] = "on".into();
    let message = node.add(&pod, &config).must_fail(106);
    assert!(
        message.contains("SMC-Rv1") && message.contains("bond0 on the host"),
        "{message}"
    );
    leases.must_be(&before, "after the refused ADD");
    config["smcr"] = "annotation".into();
    node.add(&pod, &config).must_succeed();
    assert_eq!(record(node, &pod)["smc"]["state"], "off");
    assert_eq!(
        seen(node, Some(&pod)).pod,
        [entry("TCPONLY", Some("rdma0"), None)]
    );
    node.del(&pod, &config).must_succeed();
    leases.must_be(&before, "after DEL");
}

/// Adds an operator's entries, under a pnet id of `rdma-cni` and under the operator's own id, and a user EID.
pub(crate) fn operate(node: &Node, id: &str) {
    let host = [
        entry(id, Some("ens1np0"), None),
        entry("NET9", None, Some("mlx5_3")),
        entry("NET9", Some("eth3"), None),
    ];
    for entry in host {
        node.change(
            None,
            &Op::AddPnet {
                at: NetnsSide::Host,
                entry,
            },
        );
    }
    node.change(
        None,
        &Op::AddUeid {
            ueid: "THEIRS".into(),
        },
    );
}

#[test]
fn somebody_elses_entries_stay_whatever_happens() {
    for verb in ["ADD", "DEL"] {
        for at in 0.. {
            let node = Node::new(RdmaMode::Exclusive);
            operate(&node, &id_of(&node, "eth2"));
            let pod = node.pod("a");
            let foreign = entry(&id_of(&node, "eth2"), Some("net7"), None);
            node.change(
                Some(&pod),
                &Op::AddPnet {
                    at: NetnsSide::Pod,
                    entry: foreign,
                },
            );
            let before = node.snapshot();
            let config = one_rail_with_smc(&node);
            if verb == "DEL" {
                node.add(&pod, &config).must_succeed();
            }
            let verdict = match at % 2 {
                0 => Verdict::DieBefore,
                _ => Verdict::DieAfter,
            };
            let run = |node: &Node| drop(node.run(verb, Some(&pod), &config));
            let ended = !node.kill(1 + at / 2, verdict, run);
            node.del(&pod, &config).must_succeed();
            node.must_be(&before, &format!("{verb} was killed at {at}"));
            if ended {
                assert!(at > 10, "{verb} has {at}");
                break;
            }
        }
    }
}

#[test]
fn an_operators_id_of_the_port_is_used_and_stays() {
    let node = Node::new(RdmaMode::Exclusive);
    let at = NetnsSide::Host;
    node.change(
        None,
        &Op::AddPnet {
            at,
            entry: entry("NET1", None, Some("mlx5_2")),
        },
    );
    node.change(
        None,
        &Op::AddUeid {
            ueid: "RACK-1".into(),
        },
    );
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = one_rail_with_smc(&node);
    node.add(&pod, &config).must_succeed();
    assert_eq!(
        seen(&node, Some(&pod)).pod,
        [entry("NET1", Some("rdma0"), None)]
    );
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "the operator's is there");
}

/// The last pod that uses a user EID removes it, like an entry.
#[test]
fn a_user_eid_is_taken_away_by_its_last_pod() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, other) = (node.pod("a"), node.pod("b"));
    let before = node.snapshot();
    let config = one_rail_with_smc(&node);
    let mut second = config.clone();
    second["deviceID"] = "0000:d8:00.2".into();
    node.add(&pod, &config).must_succeed();
    node.add(&other, &second).must_succeed();
    assert_eq!(seen(&node, None).host.len(), 2);
    node.del(&pod, &config).must_succeed();
    assert_eq!(seen(&node, None).ueids, ["RACK-1"]);
    node.del(&other, &second).must_succeed();
    node.must_be(&before, "after both");
}
