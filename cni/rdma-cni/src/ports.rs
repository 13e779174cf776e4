// SPDX-License-Identifier: Apache-2.0
//! Warns about changed modes of ipvlan ports. A port belongs to a netdev, and its mode applies to all children of the
//! netdev.

use crate::{node::Node, verb::teardown};
use attachments::{Attachment, Rail};
use plan::drift::PodChild;
use rdma_netns::{Child, Kernel, ObservationScope};

/// Logs a warning for each ipvlan port of `attachment` whose mode differs from the mode in the records of its children:
/// another program has changed the mode. The new child changes it back for all children.
pub(crate) fn report<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    others: &[Attachment],
) {
    let port = |rail: &Rail| {
        let shared = rail.shared.as_ref()?;
        matches!(shared.child, Child::Ipvlan { .. }).then_some(shared.parent_index)
    };
    let mut unchecked: Vec<u32> = attachment.rails.iter().filter_map(port).collect();
    if unchecked.is_empty() {
        return;
    }
    // another pod's routes may need more memory than this process may have
    let without_routes = ObservationScope {
        no_pod_routes: true,
        ..ObservationScope::default()
    };
    let scope = node.kernel.limit_observation(Some(without_routes));
    for other in others {
        let is_unchecked = |rail: &&Rail| port(rail).is_some_and(|it| unchecked.contains(&it));
        let rails: Vec<&Rail> = other.rails.iter().filter(is_unchecked).collect();
        if rails.is_empty() {
            continue;
        }
        let Ok(Some(pod)) = teardown::pod_of(node, other) else {
            continue;
        };
        let Ok(observed) = node.kernel.observe(Some(&pod)) else {
            continue;
        };
        // a pod with NET_ADMIN may have deleted its child: then the port's mode is unknown here
        for rail in rails {
            let Some(child) = PodChild::of(rail, &observed) else {
                continue;
            };
            if let Some(words) = child.changed() {
                log::warn!("{}: {words}", other.holder());
            }
            unchecked.retain(|it| port(rail) != Some(*it));
        }
    }
    node.kernel.limit_observation(scope);
}
