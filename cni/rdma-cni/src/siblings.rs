// SPDX-License-Identifier: Apache-2.0
//! Other children of a netdev that pods share: those that a pod has made besides its own, and others' whose mode is the
//! port's.

use crate::verb::{Node, teardown};
use attachments::{Attachment, Shared};
use plan::drift;
use rdma_netns::{Child, Kernel, Observed};

/// How often is looked again.
const ROUNDS: usize = 4;

/// Removes the children that the pod of `attachment` has made of the netdevs that it shares: they would hear others'
/// frames as long as the namespace lives. `observed` is the present state; a sentence for each that stays.
pub(crate) fn remove<K: Kernel>(
    node: &Node<'_, K>,
    pod: Option<&K::Pod>,
    attachment: &Attachment,
    observed: &Observed,
) -> Vec<String> {
    if plan::siblings(attachment, &[], observed).is_empty() {
        return vec![];
    }
    let beside = match node.store.of_same_pod(attachment) {
        Ok(beside) => beside,
        Err(error) => return vec![error.to_string()],
    };
    let mut left = vec![];
    for _ in 0..ROUNDS {
        let observed = match node.kernel.observe(pod) {
            Ok(observed) => observed,
            Err(error) => return vec![error.to_string()],
        };
        let ops = plan::siblings(attachment, &beside, &observed);
        left = ops.iter().map(|op| format!("not done: {op}")).collect();
        if ops.is_empty() {
            break;
        }
        for op in &ops {
            if let Err(error) = node.kernel.execute(op, pod) {
                log::warn!("{error}");
            }
        }
    }
    left
}

/// Warns of an ipvlan port that somebody has set to another mode than that of its children's records: the child that
/// comes sets it back, for all of them.
pub(crate) fn report_ports<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    others: &[Attachment],
) {
    let ports = |it: &Attachment| -> Vec<u32> {
        let shares = it.rails.iter().filter_map(|rail| rail.shared.as_ref());
        let is_port = |it: &&Shared| matches!(it.child, Child::Ipvlan(_));
        shares.filter(is_port).map(|it| it.parent_index).collect()
    };
    let own = ports(attachment);
    for other in others {
        if !ports(other).iter().any(|it| own.contains(it)) {
            continue;
        }
        let Ok(Some(pod)) = teardown::pod_of(node, other) else {
            continue;
        };
        if let Ok(observed) = node.kernel.observe(Some(&pod)) {
            for words in drift::of_children(other, &observed) {
                log::warn!("{}: {words}", other.holder());
            }
            return;
        }
    }
}
