// SPDX-License-Identifier: Apache-2.0
//! Tests of rails that are on the host, or never left it, while their record exists: such rails can have other
//! owners.

use crate::node::{Node, Pod, host_change, name};
use fake_kernel::Verdict;
use nix::errno::Errno;
use rdma_netns::{InterfaceName, LinkChange, NetnsSide, Op, RdmaMode};
use serde_json::{Value, json};
use std::fs;

fn rebinding(mut config: Value) -> Value {
    config["rebindDriver"] = json!(true);
    config
}

/// Moves the netdev `link` and its RDMA device from `pod`, or from the host if `pod` is `None`, into the namespace of
/// `owner`.
#[track_caller]
fn take(node: &Node, (link, rdma): (&str, &str), pod: Option<&Pod>, owner: &Pod) {
    let mut from = name(link);
    let stolen = name(&format!("{rdma}x"));
    if let Some(pod) = pod {
        node.change(Some(pod), &move_rdma(rdma, NetnsSide::Pod));
        node.change(Some(pod), &move_link(&from, NetnsSide::Pod, &stolen));
        from = stolen.clone();
    }
    node.change(Some(owner), &move_rdma(rdma, NetnsSide::Host));
    node.change(Some(owner), &move_link(&from, NetnsSide::Host, &stolen));
}

fn other(side: NetnsSide) -> NetnsSide {
    match side {
        NetnsSide::Pod => NetnsSide::Host,
        NetnsSide::Host => NetnsSide::Pod,
    }
}

fn move_rdma(device: &str, from: NetnsSide) -> Op {
    let (device, to) = (device.to_owned(), other(from));
    Op::MoveRdma { device, from, to }
}

fn move_link(link: &InterfaceName, from: NetnsSide, name: &InterfaceName) -> Op {
    Op::MoveLink {
        link: link.clone(),
        from,
        to: other(from),
        name: name.clone(),
    }
}

fn rename(link: &str, to: &str) -> Op {
    host_change(link, LinkChange::Rename(name(to)))
}

/// Asserts that DEL fails with code 107, because another netdev has the name `eth3`, and that it does not touch a
/// driver.
#[track_caller]
fn fails_without_drivers(node: &Node, pod: &Pod, config: &Value) {
    node.kernel.begin();
    let message = node.del(pod, config).must_fail(107);
    assert!(message.contains("eth3"), "{message}");
    drivers_are_untouched(node);
}

#[track_caller]
fn drivers_are_untouched(node: &Node) {
    let journal = node.kernel.journal();
    let is_driver = |op: &&Op| matches!(op, Op::RebindDriver { .. } | Op::BindDriver { .. });
    assert_eq!(journal.iter().find(is_driver), None, "{journal:?}");
}

/// The record exists, but the killed ADD moved nothing, so the function belongs to its next owner. In one case,
/// another pod's ADD has tried to recover the record before.
#[test]
fn a_function_that_a_killed_add_did_not_move_is_left_to_its_owner() {
    for is_recovered in [false, true] {
        let node = Node::new(RdmaMode::Exclusive);
        let config = rebinding(node.config(json!({ "devices": [{ "netdev": "eth2" }] })));
        let [pod, owner, third] = ["a", "b", "c"].map(|it| node.pod(it));
        let add = |node: &Node| drop(node.run("ADD", Some(&pod), &config));
        assert!(node.kill(1, Verdict::DieBefore, add));
        take(&node, ("eth2", "mlx5_2"), None, &owner);
        if is_recovered {
            let other = node.config(json!({ "devices": [{ "netdev": "eth3" }] }));
            node.add(&third, &other).must_succeed();
        }
        node.kernel.begin();
        node.del(&pod, &config).must_fail(107);
        drivers_are_untouched(&node);
    }
}

/// One rail is on the host, and may have upper netdevs in namespaces that are not visible. The other rail is in another
/// namespace. DEL binds the drivers of both rails again.
#[test]
fn each_rail_is_bound_anew_while_another_is_elsewhere() {
    let node = Node::new(RdmaMode::Exclusive);
    let config = rebinding(node.two_rails());
    let [pod, owner] = ["a", "b"].map(|it| node.pod(it));
    node.add(&pod, &config).must_succeed();
    take(&node, ("rdma1", "mlx5_3"), Some(&pod), &owner);
    node.kernel.begin();
    node.del(&pod, &config).must_succeed();
    assert_eq!(node.rebinds(), 2, "{:?}", node.kernel.journal());
}

#[test]
fn a_rail_is_bound_anew_before_it_is_left_to_others() {
    let node = Node::new(RdmaMode::Exclusive);
    let config = rebinding(node.two_rails());
    let pod = node.pod("a");
    node.add(&pod, &config).must_succeed();
    node.change(None, &rename("ens1np0", "eth3"));
    node.kernel.begin();
    node.del(&pod, &config).must_fail(107);
    assert_eq!(node.rebinds(), 1, "{:?}", node.kernel.journal());
    fails_without_drivers(&node, &pod, &config);
}

/// The next owner has moved the device into its own namespace, or has unbound the driver.
#[test]
fn a_rail_that_was_bound_anew_once_is_left_to_its_next_owner() {
    for has_driver in [true, false] {
        let node = Node::new(RdmaMode::Exclusive);
        let config = rebinding(node.two_rails());
        let [pod, thief, owner, third] = ["a", "b", "c", "d"].map(|it| node.pod(it));
        node.add(&pod, &config).must_succeed();
        take(&node, ("rdma0", "mlx5_2"), Some(&pod), &thief);
        node.change(None, &rename("ens1np0", "eth3"));
        node.kernel.begin();
        node.del(&pod, &config).must_fail(107);
        assert_eq!(node.rebinds(), 1, "{:?}", node.kernel.journal());
        match has_driver {
            true => take(&node, ("eth2", "mlx5_2"), None, &owner),
            false => node.kernel.with(|world| world.bind("0000:3b:00.2", None)),
        }
        fails_without_drivers(&node, &pod, &config);
        node.kernel.begin();
        let other = node.config(json!({ "devices": [{ "netdev": "eth4" }] }));
        node.add(&third, &other).must_succeed();
        drivers_are_untouched(&node);
        // when the other rail is on the host, the returned rail does not keep the record
        node.change(None, &rename("eth3", "ens1np0"));
        node.del(&pod, &config).must_succeed();
        assert!(!node.record_of(&pod).exists());
    }
}

/// A restore must not change attributes that the next owner has set.
#[test]
fn a_rail_that_came_home_keeps_what_its_next_owner_sets() {
    let node = Node::new(RdmaMode::Exclusive);
    let config = node.two_rails();
    let [pod, third] = ["a", "b"].map(|it| node.pod(it));
    node.add(&pod, &config).must_succeed();
    node.change(None, &rename("ens1np0", "eth3"));
    node.del(&pod, &config).must_fail(107);
    let (at, up) = (NetnsSide::Host, false);
    let link = name("eth2");
    node.change(
        None,
        &Op::Link {
            at,
            link,
            change: LinkChange::Up(up),
        },
    );
    node.change(None, &rename("eth2", "storage0"));
    node.change(None, &host_change("storage0", LinkChange::Mtu(1400)));
    let owned = node.snapshot();
    node.del(&pod, &config).must_fail(107);
    assert_eq!(owned.differences(&node.snapshot()), [] as [&str; 0]);
    let other = node.config(json!({ "devices": [{ "netdev": "eth4" }] }));
    node.add(&third, &other).must_succeed();
    node.del(&third, &other).must_succeed();
    assert_eq!(owned.differences(&node.snapshot()), [] as [&str; 0]);
}

/// The driver is bound again even if the record cannot be written.
#[test]
fn a_driver_is_bound_anew_although_nothing_can_be_recorded() {
    let node = Node::new(RdmaMode::Exclusive);
    let config = rebinding(node.config(json!({ "devices": [{ "netdev": "eth2" }] })));
    let pod = node.pod("a");
    node.add(&pod, &config).must_succeed();
    // this directory makes writing the record impossible
    fs::create_dir_all(node.record_of(&pod).with_extension("json.new").join("x")).unwrap();
    node.kernel.begin();
    node.del(&pod, &config).must_succeed();
    assert_eq!(node.rebinds(), 1, "{:?}", node.kernel.journal());
    assert!(!node.record_of(&pod).exists());
}

/// Returns the recorded stage of the first rail of `pod`.
fn stage(node: &Node, pod: &Pod) -> Value {
    let text = fs::read_to_string(node.record_of(pod)).unwrap();
    let mut record: Value = serde_json::from_str(&text).unwrap();
    record["rails"][0]["stage"].take()
}

/// The kernel refuses an attribute of one rail, and another rail cannot return. DEL gives the attribute up.
#[test]
fn a_rail_without_a_refused_attribute_is_left_to_its_next_owner() {
    let node = Node::new(RdmaMode::Exclusive);
    let config = node.two_rails();
    let pod = node.pod("a");
    node.add(&pod, &config).must_succeed();
    node.change(None, &rename("ens1np0", "eth3"));
    node.kernel.begin();
    node.kernel.intercept(|_, step| match step.op {
        Op::Link {
            at,
            change: LinkChange::AddRoute(_),
            ..
        } if *at == NetnsSide::Host => Verdict::Refuse(Errno::EINVAL),
        _ => Verdict::Proceed,
    });
    let message = node.del(&pod, &config).must_fail(107);
    assert!(message.contains("eth3"), "{message}");
    assert_eq!(stage(&node, &pod), "returned");
    let note = node.state.path().join("state/given-up/eth2.json");
    assert!(note.exists(), "no note names what eth2 lacks");
    node.kernel.begin();
    let owned = node.snapshot();
    node.del(&pod, &config).must_fail(107);
    assert_eq!(owned.differences(&node.snapshot()), [] as [&str; 0]);
    assert!(note.exists(), "what eth2 lacks is forgotten");
}

/// Pods can get the returned rail although another rail keeps the record. No later verb takes the rail from them.
#[test]
fn a_returned_rail_is_free() {
    for mode in [RdmaMode::Exclusive, RdmaMode::Shared] {
        let node = Node::new(mode);
        let before = node.snapshot();
        let config = node.two_rails();
        let [pod, owner, third] = ["a", "b", "c"].map(|it| node.pod(it));
        node.add(&pod, &config).must_succeed();
        node.change(None, &rename("ens1np0", "eth3"));
        node.del(&pod, &config).must_fail(107);
        let own = node.config(json!({ "devices": [{ "netdev": "eth2" }] }));
        let result = node.add(&owner, &own).must_succeed();
        let owned = node.snapshot();
        let mut checked = own.clone();
        checked["prevResult"] = result;
        let is_untouched = |what: &str| {
            assert_eq!(
                owned.differences(&node.snapshot()),
                [] as [&str; 0],
                "{what}"
            );
            node.run("CHECK", Some(&owner), &checked).must_succeed();
        };
        node.del(&pod, &config).must_fail(107);
        is_untouched("DEL of the earlier pod");
        node.gc(&[&owner], &config).must_fail(107);
        is_untouched("GC");
        let other = node.config(json!({ "devices": [{ "netdev": "eth4" }] }));
        node.add(&third, &other).must_succeed();
        node.del(&third, &other).must_succeed();
        is_untouched("recovery");
        node.change(None, &rename("eth3", "ens1np0"));
        node.del(&pod, &config).must_succeed();
        assert!(!node.record_of(&pod).exists());
        node.run("CHECK", Some(&owner), &checked).must_succeed();
        node.del(&owner, &own).must_succeed();
        for pod in [&pod, &owner, &third] {
            node.kernel.with(|world| world.unmount(&pod.netns));
        }
        node.must_be(&before, "after all DELs");
    }
}

/// One rail returns, but the other rail's namespace may be ending. So the returned rail becomes free only after a later
/// try.
#[test]
fn a_rail_is_not_left_to_others_while_another_is_awaited() {
    let node = Node::new(RdmaMode::Exclusive);
    let before = node.snapshot();
    let config = node.two_rails();
    let [pod, thief, third] = ["a", "b", "c"].map(|it| node.pod(it));
    node.add(&pod, &config).must_succeed();
    take(&node, ("rdma1", "mlx5_3"), Some(&pod), &thief);
    node.kernel.with(|world| world.unmount(&pod.netns));
    let other = node.config(json!({ "devices": [{ "netdev": "eth4" }] }));
    let recover = || {
        node.add(&third, &other).must_succeed();
        node.del(&third, &other).must_succeed();
    };
    recover();
    assert_eq!(stage(&node, &pod), Value::Null);
    // the first try is 11 s ago, which is longer than a DEL waits
    node.kernel.with(|world| world.pass_seconds(11));
    recover();
    assert_eq!(stage(&node, &pod), "returned");
    node.kernel.with(|world| world.unmount(&thief.netns));
    node.kernel.with(|world| world.unmount(&third.netns));
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "both are home");
}

/// DEL does not bind the driver of the rail in another namespace, because it cannot write the record. The other rail is
/// restored before.
#[test]
fn a_record_that_cannot_be_written_is_no_sign_that_nothing_was_changed() {
    let node = Node::new(RdmaMode::Exclusive);
    let config = rebinding(node.two_rails());
    let [pod, thief] = ["a", "b"].map(|it| node.pod(it));
    node.add(&pod, &config).must_succeed();
    take(&node, ("rdma1", "mlx5_3"), Some(&pod), &thief);
    let new = node.record_of(&pod).with_extension("json.new");
    fs::create_dir_all(new.join("in the way")).unwrap();
    let message = node.del(&pod, &config).must_fail(107);
    assert!(message.contains("cannot write"), "{message}");
    assert!(!message.contains("nothing was changed"), "{message}");
}

/// The RDMA stack is reloaded while a pod has a NIC, and begins in shared mode. In shared mode no RDMA device can be
/// moved. The new RDMA device is on the host, and DEL restores the netdev.
#[test]
fn an_rdma_device_that_was_made_again_in_shared_mode_is_home() {
    let reload = |node: &Node| {
        node.kernel
            .with(|world| world.reload_rdma(RdmaMode::Shared))
    };
    let expected = Node::new(RdmaMode::Exclusive);
    reload(&expected);
    let expected = expected.snapshot().without_numbers();
    for dies in [false, true] {
        let node = Node::new(RdmaMode::Exclusive);
        let pod = node.pod("a");
        let mut config = node.two_rails();
        let result = node.add(&pod, &config).must_succeed();
        reload(&node);
        config["prevResult"] = result;
        // the pod sees the new RDMA device too, which has other GIDs
        let message = node.run("CHECK", Some(&pod), &config).must_fail(999);
        assert!(!message.contains("is not in the pod"), "{message}");
        if dies {
            node.kernel.with(|world| world.unmount(&pod.netns));
        }
        node.kernel.begin();
        node.del(&pod, &config).must_succeed();
        let journal = node.kernel.journal();
        let is_move = |op: &Op| matches!(op, Op::MoveRdma { .. });
        assert!(!journal.iter().any(is_move), "{journal:?}");
        node.kernel.with(|world| world.unmount(&pod.netns));
        let differences = expected.differences(&node.snapshot().without_numbers());
        assert_eq!(differences, [] as [&str; 0]);
        assert!(node.records().is_empty());
    }
}

/// The RDMA stack is reloaded while a pod has a child of a NIC, and begins in exclusive mode. The new RDMA device is on
/// the host, and the pod does not see it.
#[test]
fn an_rdma_device_that_was_made_again_in_exclusive_mode_is_not_in_the_pod() {
    let leases = crate::leases::Leases::new(1);
    let node = &leases.node;
    let pod = node.pod("a");
    let config = leases.config(serde_json::json!({}));
    let result = node.add(&pod, &config).must_succeed();
    leases.check(&pod, &config, &result).must_succeed();
    node.kernel
        .with(|world| world.reload_rdma(RdmaMode::Exclusive));
    let before = node.snapshot();
    let message = leases.check(&pod, &config, &result).must_fail(999);
    assert!(
        message.contains("the pod does not see mlx5_bond_0"),
        "{message}"
    );
    assert_eq!(before.differences(&node.snapshot()), [""; 0]);
    node.del(&pod, &config).must_succeed();
    assert_eq!(leases.held(), [""; 0]);
}
