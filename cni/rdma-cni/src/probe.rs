// SPDX-License-Identifier: Apache-2.0
//! Probes whether another machine uses the addresses that IPAM assigned, before ADD sets them.
//!
//! On one node, IPAM assigns an address to only one pod. Other nodes assign addresses of the same prefix without
//! knowing this node's leases. `docs/dev/decisions/` explains how long probes take, and why this time suffices.

use attachments::{Attachment, Rail};
use rdma_netns::{
    Child, Conflict, Kernel, Observed, Question,
    probe::{PROBE_TIME, ProbeObstacle, Sign},
};
use std::time::Duration;

/// Time limit of one ADD for answers to probes, for all rails and tries together.
const LIMIT: Duration = Duration::from_millis(80);

/// The remaining time in which the ADD may wait for answers.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    left: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: LIMIT }
    }
}

impl Budget {
    /// Returns true if the remaining time allows another round of probes.
    pub fn is_enough(&self) -> bool {
        self.left >= PROBE_TIME
    }
}

/// Returns conflicts of the addresses that `attachment` will have. Probes the addresses if none conflicts with the
/// lower netdev of a child. Addresses that cannot be probed count as free, and the log has the reason.
pub fn conflicts<K: Kernel>(
    kernel: &K,
    pod: &K::Pod,
    attachment: &Attachment,
    observed: &Observed,
    budget: &mut Budget,
) -> Vec<Conflict> {
    let found = of_parents(attachment, observed);
    let questions = questions(attachment);
    if !found.is_empty() || questions.is_empty() {
        return found;
    }
    let probed = match kernel.probe(pod, &questions) {
        Ok(probed) => probed,
        Err(error) => {
            log::warn!("{error}; address conflicts with other machines are not detected");
            return vec![];
        }
    };
    budget.left = budget.left.saturating_sub(probed.waited);
    for (link, why) in probed.not_probed {
        match why {
            ProbeObstacle::NoCarrier => log::warn!("{link}: its addresses are not probed: {why}"),
            _ => log::debug!("{link}: its addresses are not probed: {why}"),
        }
    }
    probed.conflicts
}

/// Returns the conflict if another machine announced one of the addresses while ADD set them.
pub fn conflicts_since_probe<K: Kernel>(
    kernel: &K,
    pod: &K::Pod,
    attachment: &Attachment,
) -> Option<Conflict> {
    match kernel.conflicts_since_probe(pod, &questions(attachment)) {
        Ok(conflicts) => conflicts.into_iter().next(),
        Err(error) => {
            log::warn!(
                "{}: cannot check for other users of its addresses: {error}",
                attachment.key
            );
            None
        }
    }
}

fn questions(attachment: &Attachment) -> Vec<Question> {
    let rails = attachment.rails.iter().filter(|rail| rail.is_ours());
    let questions = rails.flat_map(|rail| {
        rail.assigned.addresses.iter().map(|address| Question {
            link: rail.pod_name.clone(),
            address: address.ip,
            answered_at: shares_hardware_address(rail),
        })
    });
    questions.collect()
}

fn shares_hardware_address(rail: &Rail) -> Option<u32> {
    let shared = rail.shared.as_ref()?;
    matches!(shared.child, Child::Ipvlan { .. }).then_some(shared.parent_index)
}

/// Returns conflicts with the addresses of the children's lower netdevs. A probe cannot find such a conflict, because
/// a lower netdev does not receive the probes of its children (`macvlan_broadcast()`, `drivers/net/macvlan.c`).
fn of_parents(attachment: &Attachment, observed: &Observed) -> Vec<Conflict> {
    let mut conflicts = vec![];
    for rail in &attachment.rails {
        let parent = rail.shared.as_ref().and_then(|_| rail.on_host(observed));
        let Some(parent) = parent else { continue };
        let assigned = rail.assigned.addresses.iter();
        let own = assigned.filter(|it| parent.addresses.iter().any(|own| own.ip == it.ip));
        conflicts.extend(own.map(|address| Conflict {
            link: rail.pod_name.clone(),
            address: address.ip,
            by: parent.mac.clone(),
            sign: Sign::Has,
        }));
    }
    conflicts
}
