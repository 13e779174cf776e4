// SPDX-License-Identifier: Apache-2.0
//! Tests of DEL with SMC-R after other programs changed or removed settings. Only the pod's own
//! settings can make DEL fail.

use crate::{
    leases::Leases,
    node::Node,
    smc::{entry, id, id_of, one_rail_that_asks, one_rail_with_smc, record, seen},
    smc_shared::{config, operate, pods},
};
use fake_kernel::Verdict;
use nix::errno::Errno;
use rdma_netns::{NetnsSide, Op, RdmaMode};
use serde_json::json;
use std::fs;

#[test]
fn an_operators_new_id_of_a_shared_port_stays_and_keeps_no_pod() {
    for order in [[0, 1], [1, 0]] {
        let leases = Leases::new(1);
        let node = &leases.node;
        let pods = pods(&leases, &["a", "b"]);
        let config = config(&leases);
        for pod in &pods {
            node.add(pod, &config).must_succeed();
        }
        let (at, ours) = (NetnsSide::Host, id(&id_of(node, "bond0")));
        node.change(None, &Op::RemovePnet { at, id: ours });
        let theirs = entry("NET1", None, Some("mlx5_bond_0"));
        let entry = theirs.clone();
        node.change(None, &Op::AddPnet { at, entry });
        for pod in order {
            node.kernel.begin();
            node.del(&pods[pod], &config).must_succeed();
            assert_eq!(seen(node, None).host, std::slice::from_ref(&theirs));
        }
        assert_eq!(node.records(), [""; 0]);
        assert_eq!(seen(node, None).ueids, [""; 0]);
    }
}

/// The entry that DEL must restore belongs to another program, so DEL only logs that the kernel refuses the entry.
#[test]
fn a_refused_return_keeps_no_pod() {
    let node = Node::new(RdmaMode::Exclusive);
    operate(&node, &id_of(&node, "eth2"));
    let pod = node.pod("a");
    let config = one_rail_with_smc(&node);
    node.add(&pod, &config).must_succeed();
    refuse_on_host(&node, "ens1np0");
    node.del(&pod, &config).must_succeed();
    assert_eq!(node.records(), [""; 0]);
    let left = seen(&node, None).host;
    assert!(left.iter().all(|it| *it.name == *"NET9"), "{left:?}");
}

/// Makes the kernel refuse entries of `netdev` on the host from now on.
fn refuse_on_host(node: &Node, netdev: &'static str) {
    node.kernel.begin();
    node.kernel.intercept(move |_, step| match &step.op {
        Op::AddPnet { entry, .. } if entry.netdev.as_deref() == Some(netdev) => {
            Verdict::Refuse(Errno::EPERM)
        }
        _ => Verdict::Proceed,
    });
}

/// ADD has removed an operator's entry, and could not restore it after a failed set-up of SMC-R. DEL restores the
/// entry.
#[test]
fn del_restores_smc_that_add_could_not_restore() {
    let node = Node::new(RdmaMode::Exclusive);
    operate(&node, &id_of(&node, "eth2"));
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = one_rail_that_asks(&node);
    node.kernel.begin();
    node.kernel.intercept(|_, step| match &step.op {
        Op::AddPnet { entry, .. } if entry.netdev.is_some() => Verdict::Refuse(Errno::EPERM),
        _ => Verdict::Proceed,
    });
    node.add(&pod, &config).must_succeed();
    let record = record(&node, &pod);
    assert_eq!(record["smc"]["state"], "off", "{record}");
    assert_eq!(record["smc"]["entries"], json!(null), "{record}");
    assert_eq!(record["smc"]["returning"][0]["netdev"], "ens1np0");
    node.kernel.begin();
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "the operator's is back");
}

/// DEL fails for another reason, and keeps the record. So the next DEL restores the refused entry.
#[test]
fn the_next_del_puts_back_what_was_refused() {
    let node = Node::new(RdmaMode::Exclusive);
    operate(&node, &id_of(&node, "eth2"));
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = one_rail_with_smc(&node);
    node.add(&pod, &config).must_succeed();
    let netns = node.netns(&pod);
    let hold = |count| {
        node.kernel
            .with(|world| world.hold_connections(netns, "mlx5_2", count));
    };
    hold(1);
    refuse_on_host(&node, "ens1np0");
    node.del(&pod, &config).must_fail(107);
    let left = record(&node, &pod);
    assert_eq!(left["phase"], "detaching");
    assert_eq!(left["smc"]["returning"][0]["netdev"], "ens1np0", "{left}");
    // the kernel accepts the entry now, so this DEL restores it, although it fails again
    node.kernel.begin();
    node.del(&pod, &config).must_fail(107);
    assert!(record(&node, &pod)["smc"]["returning"].is_null());
    hold(0);
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after the last DEL");
}

#[test]
fn smc_of_an_unreadable_record_stays() {
    for text in ["{", "{\"format\": 99}"] {
        let leases = Leases::new(1);
        let node = &leases.node;
        let pods = pods(&leases, &["a", "b"]);
        let config = config(&leases);
        for pod in &pods {
            node.add(pod, &config).must_succeed();
        }
        let readable = fs::read(node.record_of(&pods[1])).unwrap();
        fs::write(node.record_of(&pods[1]), text).unwrap();
        node.del(&pods[0], &config).must_succeed();
        let port = entry(&id_of(node, "bond0"), None, Some("mlx5_bond_0"));
        assert_eq!(seen(node, None).host, [port], "{text}");
        assert_eq!(seen(node, None).ueids, ["RACK-1"], "{text}");
        // when all records can be read, the last pod removes the setting
        fs::write(node.record_of(&pods[1]), readable).unwrap();
        node.del(&pods[1], &config).must_succeed();
        let found = seen(node, None);
        assert!(found.host.is_empty() && found.ueids.is_empty(), "{found:?}");
    }
}

/// CHECK does not expect the entries of a failed set-up, which `rdma-cni` could not remove.
#[test]
fn check_misses_nothing_of_a_pod_that_goes_without() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let id = id(&id_of(&node, "eth2"));
    let mut config = one_rail_that_asks(&node);
    node.kernel.begin();
    node.kernel.intercept(|_, step| match step.op {
        Op::AddPnet {
            at: NetnsSide::Pod, ..
        }
        | Op::RemovePnet { .. } => Verdict::Refuse(Errno::EPERM),
        _ => Verdict::Proceed,
    });
    config["prevResult"] = node.add(&pod, &config).must_succeed();
    node.kernel.begin();
    let left = record(&node, &pod);
    assert_eq!(left["smc"]["state"], "off");
    assert_eq!(left["smc"]["entries"].as_array().map(Vec::len), Some(2));
    let check = || node.run("CHECK", Some(&pod), &config);
    check().must_succeed();
    let at = NetnsSide::Host;
    node.change(None, &Op::RemovePnet { at, id });
    check().must_succeed();
    node.kernel.with(|world| world.smc = None);
    check().must_succeed();
}

/// DEL and GC ignore the invalid `smcUeid`, because they use the record.
#[test]
fn a_wrong_ueid_keeps_no_pod() {
    for verb in ["DEL", "GC"] {
        let node = Node::new(RdmaMode::Exclusive);
        let (pod, other) = (node.pod("a"), node.pod("b"));
        let before = node.snapshot();
        let mut config = one_rail_with_smc(&node);
        node.add(&pod, &config).must_succeed();
        config["smcUeid"] = "rack 1".into();
        let is_reported = |message: &str| message.contains("smcUeid") && message.contains("rack 1");
        let message = node.add(&other, &config).must_fail(7);
        assert!(is_reported(&message), "{message}");
        let message = node.run("STATUS", None, &config).must_fail(7);
        assert!(is_reported(&message), "{message}");
        match verb {
            "DEL" => drop(node.del(&pod, &config).must_succeed()),
            _ => drop(node.gc(&[], &config).must_succeed()),
        }
        node.must_be(&before, verb);
        let message = node.run("plan", Some(&other), &config).must_fail(7);
        assert!(is_reported(&message), "{message}");
    }
}
