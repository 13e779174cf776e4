// SPDX-License-Identifier: Apache-2.0
//! Environment, input and VERSION. An error has its code and names the wrong variable or field, before any change.

mod environment;
mod input;
mod versions;

use integration::{Netns, Node, Snapshot};

/// A node with one rail, a pod, and a snapshot of the host.
fn untouched_node() -> (Node, Netns, Snapshot) {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    (node, pod, before)
}
