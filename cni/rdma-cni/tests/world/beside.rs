// SPDX-License-Identifier: Apache-2.0
//! Pods that share netdevs of the host, beside others: whom they wait for, and what is decided between two that come
//! at the same moment.

use crate::{
    leases::{bonds, has_link},
    node::{Node, Pod},
    wrapped::Wrapped,
};
use attachments::Store;
use cni_protocol::{code, lock::Patience};
use rdma_cni::{
    error::Error,
    reply,
    verb::{add, del},
};
use rdma_netns::Op;
use serde_json::{Value, json};
use std::{
    cell::{Cell, RefCell},
    fs,
    time::{Duration, Instant},
};

/// Too short for anybody who would have to wait.
const SHORT: Duration = Duration::from_millis(50);

fn node() -> Node {
    Node::with(bonds(2))
}

/// Children of the bonds called `devices`.
fn shared(node: &Node, devices: &str, fields: Value) -> Value {
    let mut config = node.config(json!({ "devices": [{ "netdev": devices }], "mode": "share" }));
    for (key, value) in fields.as_object().expect("fields") {
        config[key] = value.clone();
    }
    config
}

fn store(node: &Node) -> Store {
    let root = node.state.path().join("state");
    Store::within(&root, Patience::until(Instant::now() + SHORT))
}

fn add_within(node: &Node, pod: &Pod, config: &Value) -> Result<(), Error> {
    node.within(SHORT, "ADD", Some(pod), config, |node| {
        add::add(node).map(drop)
    })
}

#[test]
fn who_shares_comes_while_others_look_and_ends_whatever_they_do() {
    let node = node();
    let (pod, config) = (node.pod("a"), shared(&node, "bond*", json!({})));
    let before = node.snapshot();
    let looking = store(&node).share_node().expect("nobody has it");
    add_within(&node, &pod, &config).expect("ADD waits for nobody");
    assert!(has_link(&node, &pod, "rdma1"));
    drop(looking);
    // its children end while somebody else moves
    let moving = store(&node).lock_node().expect("nobody has it");
    let ended = node.within(SHORT, "DEL", Some(&pod), &config, del::del);
    ended.expect("DEL waits for nobody");
    drop(moving);
    node.must_be(&before, "after both");
}

#[test]
fn who_moves_waits_for_those_who_look_and_who_shares_for_one_that_moves() {
    let node = node();
    let pod = node.pod("a");
    let before = node.snapshot();
    let moved = node.config(json!({ "devices": [{ "netdev": "eth8" }], "mode": "move" }));
    let looking = store(&node).share_node().expect("nobody has it");
    let error = add_within(&node, &pod, &moved).expect_err("somebody looks");
    assert_eq!(reply::code(&error), code::TRY_LATER, "{error}");
    drop(looking);
    let moving = store(&node).lock_node().expect("nobody has it");
    let config = shared(&node, "bond*", json!({}));
    let error = add_within(&node, &pod, &config).expect_err("somebody moves");
    assert_eq!(reply::code(&error), code::TRY_LATER, "{error}");
    drop(moving);
    node.must_be(&before, "neither has begun");
}

/// Only one of a DEL's and an ADD's moves and SMC-R's tables run at a time.
#[test]
fn what_was_moved_goes_back_alone() {
    let node = node();
    let pod = node.pod("a");
    let moved = node.config(json!({ "devices": [{ "netdev": "eth8" }], "mode": "move" }));
    node.add(&pod, &moved).must_succeed();
    let looking = store(&node).share_node().expect("nobody has it");
    let (code, message) = node.del_within(&pod, &moved, SHORT);
    assert_eq!(code, code::TRY_LATER, "{message}");
    drop(looking);
    node.del(&pod, &moved).must_succeed();
}

/// Runs ADD of `config` for `pod`; after its last look, before its record is written, comes `meanwhile`.
fn add_with(
    node: &Node,
    pod: &Pod,
    config: &Value,
    meanwhile: impl FnOnce(),
) -> crate::node::Answer {
    let meanwhile = RefCell::new(Some(meanwhile));
    let own = node.record_of(pod);
    let wrapped = Wrapped {
        after_look: Box::new(|look| {
            // a look without ports goes before the one that counts
            if look == 2 {
                assert!(!own.exists(), "its record is written already");
                let meanwhile = meanwhile.take();
                meanwhile.expect("once")();
            }
        }),
        ..Wrapped::new(node)
    };
    wrapped.run(node, "ADD", Some(pod), config)
}

#[test]
fn of_two_at_once_with_children_of_different_types_the_later_one_is_told() {
    let node = node();
    let (first, second) = (node.pod("a"), node.pod("b"));
    let before = node.snapshot();
    let macvlan = shared(&node, "bond0", json!({}));
    let ipvlan = shared(&node, "bond0", json!({ "child": { "type": "ipvlan" } }));
    node.kernel.begin();
    let came = Cell::new(false);
    let answer = add_with(&node, &first, &macvlan, || {
        node.add(&second, &ipvlan).must_succeed();
        came.set(true);
    });
    assert!(came.get());
    let message = answer.must_fail(102);
    assert!(
        message.contains("container b") && message.contains("ipvlan"),
        "{message}"
    );
    let is_child = |op: &&Op| matches!(op, Op::AddChild { .. });
    let children = node.kernel.journal().iter().filter(is_child).count();
    assert_eq!(
        children, 1,
        "the kernel was not asked for a child that cannot be"
    );
    assert!(has_link(&node, &second, "rdma0") && !node.record_of(&first).exists());
    node.del(&first, &macvlan).must_succeed();
    node.del(&second, &ipvlan).must_succeed();
    node.must_be(&before, "after both");
}

#[test]
fn two_attachments_of_a_pod_at_once_get_tables_of_their_own() {
    let node = node();
    let pod = node.pod("a");
    let other = pod.attachment("eth1");
    let before = node.snapshot();
    let routing = json!({ "tableBase": 1000 });
    let config = shared(&node, "bond*", json!({ "routing": routing }));
    let config_of_other = shared(
        &node,
        "bond*",
        json!({ "routing": routing, "interfaceName": "more%d" }),
    );
    let answer = add_with(&node, &pod, &config, || {
        node.add(&other, &config_of_other).must_succeed();
    });
    answer.must_succeed();
    let base = |pod: &Pod| -> Value {
        let text = fs::read(node.record_of(pod)).expect("its record");
        let record: Value = serde_json::from_slice(&text).expect("a record");
        record["routing"]["tableBase"].clone()
    };
    assert_eq!((base(&other), base(&pod)), (json!(1000), json!(1002)));
    node.del(&other, &config_of_other).must_succeed();
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after both");
}

#[test]
fn others_that_share_the_same_change_nothing() {
    let node = node();
    let (first, second) = (node.pod("a"), node.pod("b"));
    let before = node.snapshot();
    let config = shared(&node, "bond*", json!({}));
    // it would wait for ever if it had to be alone
    let looking = store(&node).share_node().expect("nobody has it");
    let answer = add_with(&node, &first, &config, || {
        node.add(&second, &config).must_succeed();
    });
    answer.must_succeed();
    drop(looking);
    for pod in [&first, &second] {
        assert!(has_link(&node, pod, "rdma0"));
        node.del(pod, &config).must_succeed();
    }
    node.must_be(&before, "after both");
}

/// The node's lock is free while the kernel makes the children: the record keeps their netdev where it is.
#[test]
fn a_netdev_whose_child_is_being_made_is_not_moved() {
    let node = node();
    let (sharing, moving) = (node.pod("a"), node.pod("b"));
    let before = node.snapshot();
    let config = shared(&node, "eth8", json!({}));
    let moved = node.config(json!({ "devices": [{ "netdev": "eth8" }], "mode": "move" }));
    let refused = Cell::new(0);
    let wrapped = Wrapped {
        before_change: Box::new(|op| {
            if matches!(op, Op::AddChild { .. }) {
                let message = node.add(&moving, &moved).must_fail(101);
                assert!(message.contains("container a"), "{message}");
                refused.set(refused.get() + 1);
            }
        }),
        ..Wrapped::new(&node)
    };
    let answer = wrapped.run(&node, "ADD", Some(&sharing), &config);
    answer.must_succeed();
    assert_eq!(refused.get(), 1);
    node.del(&sharing, &config).must_succeed();
    node.add(&moving, &moved).must_succeed();
    node.del(&moving, &moved).must_succeed();
    node.must_be(&before, "after both");
}
