// SPDX-License-Identifier: Apache-2.0
//! SMC-R of a pod, taken away again: entries and the user EID go with the last pod that has them.

use super::{Error, Node, ROUNDS};
use crate::decision::{self, Others};
use attachments::{Attachment, Phase, Smc};
use rdma_netns::{Kernel, NetnsSide, Op};

/// Takes away what of the attachment's SMC-R no other one has, goes on after an error, and tells
/// what is left of it. The node's lock is held by the caller. What a dead namespace had is gone
/// with it, and so is all of it with the module.
///
/// Somebody else's entries that cannot be put back are told in the log only, and stay in
/// `attachment`, as in its record: they are no reason to keep the pod.
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
            "{key}: its pnet ids on the host and its user EID stay: whether {other} has them as \
             well is not known, as its record cannot be read"
        );
    }
    let mut round = Round::default();
    // the last one finds that nothing is missing any more
    for _ in 0..=ROUNDS {
        round = match take_some(node, pod, attachment, !unreadable.is_empty()) {
            Ok(round) => round,
            Err(error) => Round {
                left: vec![error.to_string()],
                not_back: vec![],
            },
        };
        if round.left.is_empty() && round.not_back.is_empty() {
            return vec![];
        }
    }
    if !round.not_back.is_empty() {
        let words = round.not_back.join("; ");
        log::warn!("{key}: pnet entries of somebody else are not back: {words}");
    }
    round.left
}

/// What was refused, or was still to be done. Empty: there was nothing to do.
#[derive(Debug, Default)]
struct Round {
    /// What is the pod's own.
    left: Vec<String>,
    /// Entries of others.
    not_back: Vec<String>,
}

fn take_some<K: Kernel>(
    node: Node<'_, K>,
    pod: Option<&K::Pod>,
    attachment: &mut Attachment,
    unreadable: bool,
) -> Result<Round, Error> {
    let Some(seen) = node.kernel.smc(pod)? else {
        return Ok(Round::default());
    };
    let records = &node.store.on_this_boot(attachment)?;
    let others = Others {
        records,
        unreadable,
    };
    let ops = decision::detach(attachment, others, &seen, pod.is_some());
    let returning = decision::returning(attachment, others, &seen, pod.is_some());
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
        let told = match node.kernel.execute(op, pod) {
            Ok(()) => format!("done, and yet undone again by somebody else: {op}"),
            Err(error) => error.to_string(),
        };
        match op {
            Op::AddPnet { .. } => round.not_back.push(told),
            _ => round.left.push(told),
        }
    }
    Ok(round)
}

/// Tells what a lost record may have been about: whether it or an operator added an entry,
/// nobody knows any more, so that it stays.
pub fn tell_lost<K: Kernel>(node: Node<'_, K>, attachment: &Attachment) {
    if !node.kernel.has_smc() {
        return;
    }
    let (Ok(Some(seen)), Ok(others)) = (node.kernel.smc(None), node.store.on_this_boot(attachment))
    else {
        return;
    };
    let rails = attachment.rails.iter();
    let devices: Vec<&String> = rails
        .filter_map(|it| Some(&it.rdma.as_ref()?.name))
        .collect();
    for entry in &seen.host {
        let is_lost = entry
            .rdma
            .as_ref()
            .is_some_and(|it| devices.contains(&&it.0));
        let mut records = others.iter().filter_map(|it| it.smc.as_ref());
        if is_lost && !records.any(|smc| smc.has(NetnsSide::Host, entry)) {
            log::warn!(
                "pnet id {} may have been the lost record's: if nobody needs it, remove it by \
                 smc_pnet -d {}",
                entry.name,
                entry.name
            );
        }
    }
}
