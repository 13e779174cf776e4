// SPDX-License-Identifier: Apache-2.0
//! Environment, input and VERSION: what is wrong is told by its code and its name, before
//! anything is changed.

mod environment;
mod input;
mod versions;

use integration::{Netns, Node, Snapshot};

/// A node with one rail, and what its host is like before.
fn untouched_node() -> (Node, Netns, Snapshot) {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    (node, pod, before)
}
