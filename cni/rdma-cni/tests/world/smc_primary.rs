// SPDX-License-Identifier: Apache-2.0
//! Tests of SMC-R for a primary interface in another network than the rails. An RDMA device with one GID can carry the
//! interface's connections, because the kernel then does not compare GID and address. No other RDMA device can.

use crate::{
    leases::{Leases, bonds},
    node::{Node, Pod, name},
    smc::{ask, entry, id_of, one_rail_that_asks, one_rail_with_smc, primary, record, seen},
};
use fake_kernel::Verdict;
use rdma_netns::{Address, LinkChange, NetnsSide, Op, RdmaMode, link::IFA_F_NOPREFIXROUTE};
use serde_json::{Value, json};
use std::fs;

const PRIMARY: &str = "net7";

/// Returns a pod with a primary interface in its own network, and the pod's configuration.
fn pod(node: &Node, name: &str, mut config: Value) -> (Pod, Value) {
    let pod = node.pod(name);
    config["prevResult"] = primary(node, &pod, PRIMARY, &["10.244.1.5/24"]);
    (pod, config)
}

fn carried(record: &Value) -> Vec<&str> {
    let interfaces = record["smc"]["interfaces"].as_array().into_iter().flatten();
    interfaces
        .filter_map(|it| it["interface"].as_str())
        .collect()
}

fn addresses(node: &Node, pod: &Pod, link: &str) -> Vec<Address> {
    let netns = node.netns(pod);
    let of = |link| node.kernel.with(|world| world.link(netns, link).cloned());
    of(link).unwrap().addresses
}

/// Returns a node whose RDMA devices have one GID, like eRDMA's.
fn with_one_gid() -> Node {
    let node = Node::new(RdmaMode::Exclusive);
    node.kernel.with(|world| world.gid_table_size = 1);
    node
}

#[test]
fn a_device_of_one_gid_carries_it() {
    let node = with_one_gid();
    let (pod, mut config) = pod(&node, "a", one_rail_with_smc(&node));
    let before = node.snapshot();
    config["prevResult"] = node.add(&pod, &config).must_succeed();
    let record = record(&node, &pod);
    assert_eq!(carried(&record), ["rdma0", PRIMARY]);
    assert_eq!(record["smc"]["interfaces"][1]["by"], "device", "{record}");
    assert!(record["smc"]["reason"].is_null(), "{record}");
    let id = seen(&node, None).host[0].name.to_string();
    let of_pod = ["rdma0", PRIMARY].map(|netdev| entry(&id, Some(netdev), None));
    assert_eq!(seen(&node, Some(&pod)).pod, of_pod);
    node.run("CHECK", Some(&pod), &config).must_succeed();
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after DEL");
}

#[test]
fn a_shared_device_of_one_gid_carries_those_of_several_pods() {
    let leases = Leases::new(1);
    let node = &leases.node;
    node.kernel.with(|world| world.gid_table_size = 1);
    let mut config = leases.config(json!({ "devices": [{ "netdev": "bond0" }] }));
    ask(&mut config);
    config["smcr"] = "on".into();
    let before = node.snapshot();
    let pods = ["a", "b"].map(|name| {
        let given = json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.50.0.7/24" }] });
        leases.gives(&format!("{name}.rdma0"), &given);
        let (pod, config) = pod(node, name, config.clone());
        node.add(&pod, &config).must_succeed();
        assert_eq!(carried(&record(node, &pod)), ["rdma0", PRIMARY]);
        (pod, config)
    });
    for (pod, config) in &pods {
        node.del(pod, config).must_succeed();
        node.kernel.with(|world| world.unmount(&pod.netns));
    }
    leases.must_be(&before, "after both");
}

#[test]
fn nothing_is_left_of_an_add_or_del_that_was_killed() {
    for verb in ["ADD", "DEL"] {
        for at in 0.. {
            let node = with_one_gid();
            let (pod, config) = pod(&node, "a", one_rail_with_smc(&node));
            let before = node.snapshot();
            if verb == "DEL" {
                node.add(&pod, &config).must_succeed();
            }
            let verdict = match at % 2 {
                0 => Verdict::DieBefore,
                _ => Verdict::DieAfter,
            };
            let run = |node: &Node| drop(node.run(verb, Some(&pod), &config));
            let ended = !node.kill(1 + at / 2, verdict, run);
            match at % 3 {
                0 => drop(node.gc(&[], &config).must_succeed()),
                _ => drop(node.del(&pod, &config).must_succeed()),
            }
            node.must_be(&before, &format!("{verb} was killed at {at}"));
            if ended {
                assert!(at > 20, "{verb} has {at}");
                break;
            }
        }
    }
}

/// The RDMA device has GIDs of addresses, and the kernel accepts no GID of another network. With `has_v1`, the
/// kernel would accept a RoCE v1 GID, which does not help.
#[test]
fn a_device_with_gids_of_addresses_is_refused_and_reported() {
    for (has_v1, words) in [
        (false, "net7: no GID fits 10.244.1.5/24"),
        (true, "net7: only SMC-Rv1 could carry its connections"),
    ] {
        let node = Node::new(RdmaMode::Exclusive);
        node.kernel.with(|world| world.gids_of_roce_v1 = has_v1);
        let (pod, mut config) = pod(&node, "a", one_rail_with_smc(&node));
        let before = node.snapshot();
        let message = node.add(&pod, &config).must_fail(106);
        for words in [words, "\"annotation\""] {
            assert!(message.contains(words), "{message}");
        }
        node.must_be(&before, words);

        ask(&mut config);
        config["smcr"] = "annotation".into();
        let result = node.add(&pod, &config).must_succeed();
        let record = record(&node, &pod);
        assert_eq!(carried(&record), ["rdma0"], "{record}");
        let reason = record["smc"]["reason"].as_str().unwrap();
        assert!(reason.contains(words), "{reason}");
        let of_pod = seen(&node, Some(&pod)).pod;
        let kept_off = entry("TCPONLY", Some(PRIMARY), None);
        assert_eq!(of_pod.contains(&kept_off), has_v1, "{of_pod:?}");
        assert_eq!(of_pod.len(), 1 + usize::from(has_v1), "{of_pod:?}");
        // the rail has neither a point-to-point address nor an address of the primary network
        for address in addresses(&node, &pod, "rdma0") {
            assert_eq!(address.peer, None);
            assert!(!address.ip.to_string().starts_with("10.244"), "{address:?}");
        }
        config["prevResult"] = result;
        node.run("CHECK", Some(&pod), &config).must_succeed();
        node.del(&pod, &config).must_succeed();
        node.must_be(&before, "after DEL");
    }
}

#[test]
fn a_child_of_a_shared_netdev_does_not() {
    for has_v1 in [false, true] {
        let mut world = bonds(1);
        world.gids_of_roce_v1 = has_v1;
        let leases = Leases::on(Node::with(world));
        let node = &leases.node;
        let given = json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.50.0.7/24" }] });
        leases.gives("a.rdma0", &given);
        let mut config = leases.config(json!({ "devices": [{ "netdev": "bond0" }] }));
        ask(&mut config);
        let (pod, config) = pod(node, "a", config);
        let before = node.snapshot();
        node.add(&pod, &config).must_succeed();
        let record = record(node, &pod);
        assert_eq!(carried(&record), ["rdma0"], "{record}");
        let reason = record["smc"]["reason"].as_str().unwrap();
        let words = match has_v1 {
            true => "net7: only SMC-Rv1 could carry its connections",
            false => "net7: no GID fits 10.244.1.5/24",
        };
        assert!(reason.contains(words), "{reason}");
        node.del(&pod, &config).must_succeed();
        leases.must_be(&before, "after DEL");
    }
}

/// Makes the state that an earlier version left: it set the rail's own address a second time, with the primary
/// interface's address as the peer. Changes the record, and adds the address and the primary interface's pnet id.
fn as_left_by_an_earlier_version(node: &Node, pod: &Pod) {
    let link = name("rdma0");
    let mut addresses = addresses(node, pod, &link).into_iter();
    let mut address = addresses.find(|it| it.ip.is_ipv4()).unwrap();
    address.prefix = 32;
    address.peer = "10.244.1.5".parse().ok();
    address.flags = IFA_F_NOPREFIXROUTE;
    let mut record = record(node, pod);
    let smc = &mut record["smc"];
    let mut primary = smc["interfaces"][0].clone();
    primary["interface"] = PRIMARY.into();
    let id = primary["pnetId"].as_str().unwrap().to_owned();
    smc["interfaces"].as_array_mut().unwrap().push(primary);
    let placed = json!({ "at": "pod", "name": id, "netdev": PRIMARY });
    smc["entries"].as_array_mut().unwrap().push(placed);
    smc["lent"] = json!({ "rail": "rdma0", "address": address });
    smc.as_object_mut().unwrap().remove("reason");
    fs::write(node.record_of(pod), record.to_string()).unwrap();
    let at = NetnsSide::Pod;
    let entry = entry(&id, Some(PRIMARY), None);
    node.change(Some(pod), &Op::AddPnet { at, entry });
    node.change(
        Some(pod),
        &Op::Link {
            at,
            link,
            change: LinkChange::AddAddress(address),
        },
    );
}

#[test]
fn smc_set_by_an_earlier_version_is_removed() {
    for (verb, lives) in [
        ("DEL", true),
        ("DEL", false),
        ("GC", true),
        ("ADD", false),
        ("DEL, killed", true),
    ] {
        let node = Node::new(RdmaMode::Exclusive);
        let other = node.pod("b");
        let before = node.snapshot();
        let (pod, mut config) = pod(&node, "a", one_rail_that_asks(&node));
        let with_pod = node.snapshot();
        let id = id_of(&node, "eth2");
        config["prevResult"] = node.add(&pod, &config).must_succeed();
        as_left_by_an_earlier_version(&node, &pod);
        node.run("CHECK", Some(&pod), &config).must_succeed();
        if !lives {
            node.kernel.with(|world| world.unmount(&pod.netns));
        }
        match verb {
            "GC" => drop(node.gc(&[], &config).must_succeed()),
            "ADD" => {
                let config = one_rail_that_asks(&node);
                node.add(&other, &config).must_succeed();
                assert_eq!(seen(&node, None).host, [entry(&id, None, Some("mlx5_2"))]);
                node.del(&other, &config).must_succeed();
            }
            "DEL" => drop(node.del(&pod, &config).must_succeed()),
            _ => {
                // the record is written again before the rail leaves the pod
                let run = |node: &Node| drop(node.run("DEL", Some(&pod), &config));
                node.kill(3, Verdict::DieAfter, run);
                node.del(&pod, &config).must_succeed();
            }
        }
        node.must_be(if lives { &with_pod } else { &before }, verb);
    }
}

#[test]
fn check_reports_a_missing_address() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, mut config) = pod(&node, "a", one_rail_that_asks(&node));
    config["prevResult"] = node.add(&pod, &config).must_succeed();
    as_left_by_an_earlier_version(&node, &pod);
    let mut addresses = addresses(&node, &pod, "rdma0").into_iter();
    let address = addresses.find(|it| it.peer.is_some()).unwrap();
    let (at, link) = (NetnsSide::Pod, name("rdma0"));
    node.change(
        Some(&pod),
        &Op::Link {
            at,
            link,
            change: LinkChange::RemoveAddress(address),
        },
    );
    let message = node.run("CHECK", Some(&pod), &config).must_fail(999);
    assert!(message.contains("SMC-R of net7: no GID fits"), "{message}");
}

/// `rdma-cni plan` assumes that the GIDs match, because the pod does not have them yet.
#[test]
fn a_plan_shows_it_with_the_condition() {
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, config) = pod(&node, "a", one_rail_with_smc(&node));
    let id = id_of(&node, "eth2");
    let mut output = vec![];
    node.run_into("plan", Some(&pod), &config, &mut output);
    let plan = String::from_utf8(output).unwrap();
    for line in [
        "# then SMC-R, if the GIDs of the pod's addresses allow it:".to_owned(),
        format!("ip netns exec a smc_pnet -a {id} -I {PRIMARY}"),
    ] {
        assert!(plan.lines().any(|it| it == line), "{line}:\n{plan}");
    }
    assert!(!plan.contains("peer"), "{plan}");
}
