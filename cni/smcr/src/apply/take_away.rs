// SPDX-License-Identifier: Apache-2.0
//! Removes a pod's SMC-R. The last pod that uses a pnet entry or the user EID removes it.

use super::{Error, Node, ROUNDS};
use crate::decision::{self, Others};
use attachments::{Attachment, Phase, Smc};
use rdma_netns::{Kernel, NetnsSide, Op};

/// Removes the parts of the attachment's SMC-R that no other attachment uses. Returns the failures. Continues after a
/// failure. The caller holds the node's lock.
///
/// - The kernel removes a namespace's entries when the namespace ends, and all entries of the node when it unloads the
///   module. `take_away` does not remove these entries.
/// - When `take_away` removes a pnet id, the kernel also removes the entries of other attachments and programs with
///   this id. `take_away` adds them again. If it cannot add an entry again, it keeps the entry in `attachment` and in
///   the record, and only logs the failure, so that the pod can be deleted.
/// - If another record cannot be read, `take_away` removes neither pnet ids on the host nor the user EID, which that
///   record may share.
pub fn take_away<K: Kernel>(
    node: Node<'_, K>,
    pod: Option<&K::Pod>,
    attachment: &mut Attachment,
) -> Vec<String> {
    if !attachment.smc.as_ref().is_some_and(Smc::is_set) {
        return vec![];
    }
    let mut unreadable = match node.store.unreadable() {
        Ok(unreadable) => unreadable,
        Err(error) => return vec![error.to_string()],
    };
    unreadable.retain(|key| *key != attachment.key);
    let key = &attachment.key.clone();
    if let Some(other) = unreadable.first()
        && attachment.smc.as_ref().is_some_and(Smc::has_nodes)
    {
        log::warn!(
            "{key}: keeping its pnet ids on the host and its user EID: the record of {other}, which may \
             share them, cannot be read"
        );
    }
    let mut round = Round::default();
    // the last round only checks that no entry is left
    for _ in 0..=ROUNDS {
        round = match remove_once(node, pod, attachment, !unreadable.is_empty()) {
            Ok(round) => round,
            Err(error) => Round {
                left: vec![error.to_string()],
                not_restored: vec![],
            },
        };
        if round.left.is_empty() && round.not_restored.is_empty() {
            return vec![];
        }
    }
    if !round.not_restored.is_empty() {
        let words = round.not_restored.join("; ");
        log::warn!("{key}: cannot restore the pnet entries of other pods and programs: {words}");
    }
    round.left
}

/// Messages of one round, one for each change. Only the messages of the last round report failures, because later
/// rounds repeat a failed change. Empty: no change was necessary.
#[derive(Debug, Default)]
struct Round {
    /// Messages about removals of the pod's own state.
    left: Vec<String>,
    /// Messages about additions of entries of other attachments and programs.
    not_restored: Vec<String>,
}

fn remove_once<K: Kernel>(
    node: Node<'_, K>,
    pod: Option<&K::Pod>,
    attachment: &mut Attachment,
    unreadable: bool,
) -> Result<Round, Error> {
    let Some(smc_state) = node.kernel.smc(pod)? else {
        return Ok(Round::default());
    };
    let records = &node.store.on_this_boot(attachment)?;
    let others = Others {
        records,
        unreadable,
    };
    let ops = decision::detach(attachment, others, &smc_state, pod.is_some());
    let returning = decision::returning(attachment, others, &smc_state, pod.is_some());
    if let Some(smc) = &mut attachment.smc
        && smc.returning != returning
    {
        let is_known = returning.iter().all(|it| smc.returning.contains(it));
        smc.returning = returning;
        if attachment.phase == Phase::Attached {
            attachment.phase = Phase::Detaching;
        }
        match is_known {
            true => node.store.update(attachment)?,
            false => node.store.save(attachment)?,
        }
    }
    let mut round = Round::default();
    for op in &ops {
        log::debug!("{op}");
        let message = match node.kernel.execute(op, pod) {
            Ok(()) => format!("another program undid this change: {op}"),
            Err(error) => error.to_string(),
        };
        match op {
            Op::AddPnet { .. } => round.not_restored.push(message),
            _ => round.left.push(message),
        }
    }
    Ok(round)
}

/// Logs the host's pnet entries that name the attachment's RDMA devices and that no other record has: the attachment
/// may have added these entries before its record was lost. Keeps the entries, because an administrator may have added
/// them.
pub fn log_orphaned_entries<K: Kernel>(node: Node<'_, K>, attachment: &Attachment) {
    if !node.kernel.has_smc() {
        return;
    }
    let (Ok(Some(smc_state)), Ok(others)) =
        (node.kernel.smc(None), node.store.on_this_boot(attachment))
    else {
        return;
    };
    let rails = attachment.rails.iter();
    let devices: Vec<&String> = rails
        .filter_map(|it| Some(&it.rdma.as_ref()?.name))
        .collect();
    for entry in &smc_state.host {
        let is_lost = entry
            .rdma
            .as_ref()
            .is_some_and(|it| devices.contains(&&it.0));
        let mut records = others.iter().filter_map(|it| it.smc.as_ref());
        if is_lost && !records.any(|smc| smc.has(NetnsSide::Host, entry)) {
            log::warn!(
                "pnet id {} may belong to the lost record: if it is unused, remove it with \
                 smc_pnet -d {}",
                entry.name,
                entry.name
            );
        }
    }
}
