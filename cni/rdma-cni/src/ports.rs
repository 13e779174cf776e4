// SPDX-License-Identifier: Apache-2.0
//! Warns about changed modes of ipvlan ports. A port belongs to a netdev, and its mode applies to all children of the
//! netdev.

use crate::verb::{Node, teardown};
use attachments::{Attachment, Shared};
use plan::drift;
use rdma_netns::{Child, Kernel};

/// Logs a warning for each ipvlan port of `attachment` whose mode differs from the mode in the records of its children:
/// another program has changed the mode. The new child changes it back for all children.
pub(crate) fn report<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    others: &[Attachment],
) {
    let ports = |it: &Attachment| -> Vec<u32> {
        let shares = it.rails.iter().filter_map(|rail| rail.shared.as_ref());
        let is_port = |it: &&Shared| matches!(it.child, Child::Ipvlan { .. });
        shares.filter(is_port).map(|it| it.parent_index).collect()
    };
    let mut unchecked = ports(attachment);
    for other in others {
        let checked = ports(other);
        if !checked.iter().any(|it| unchecked.contains(it)) {
            continue;
        }
        let Ok(Some(pod)) = teardown::pod_of(node, other) else {
            continue;
        };
        if let Ok(observed) = node.kernel.observe(Some(&pod)) {
            for words in drift::of_children(other, &observed) {
                log::warn!("{}: {words}", other.holder());
            }
            unchecked.retain(|it| !checked.contains(it));
        }
    }
}
