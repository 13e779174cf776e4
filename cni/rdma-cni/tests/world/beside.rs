// SPDX-License-Identifier: Apache-2.0
//! Whom a pod that ends waits for: its children concern nobody else, and what was moved goes back alone on the node.

use crate::{
    leases::{bonds, has_link},
    node::Node,
};
use attachments::Store;
use cni_protocol::code;
use rdma_cni::verb::del;
use serde_json::json;
use std::time::Duration;

/// Too short for anybody who would have to wait.
const SHORT: Duration = Duration::from_millis(50);

fn store(node: &Node) -> Store {
    Store::new(&node.state.path().join("state"))
}

#[test]
fn children_end_while_somebody_else_moves() {
    let node = Node::with(bonds(2));
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = node.config(json!({ "devices": [{ "netdev": "bond*" }], "mode": "share" }));
    node.add(&pod, &config).must_succeed();
    assert!(has_link(&node, &pod, "rdma1"));
    let moving = store(&node).lock_node().expect("nobody has it");
    let ended = node.within(SHORT, "DEL", Some(&pod), &config, del::del);
    ended.expect("DEL waits for nobody");
    drop(moving);
    node.must_be(&before, "after it");
}

#[test]
fn what_was_moved_goes_back_alone() {
    let node = Node::with(bonds(2));
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = node.config(json!({ "devices": [{ "netdev": "eth8" }], "mode": "move" }));
    node.add(&pod, &config).must_succeed();
    let moving = store(&node).lock_node().expect("nobody has it");
    let (code, message) = node.del_within(&pod, &config, SHORT);
    assert_eq!(code, code::TRY_LATER, "{message}");
    drop(moving);
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after it");
}
