// SPDX-License-Identifier: Apache-2.0
//! Netdevs that are on the host again, and a network manager that takes their addresses away a moment later.

use super::{Node, teardown};
use crate::apply::{Incomplete, Restored};
use attachments::{Attachment, Phase, Smc, Stage};
use rdma_netns::Kernel;
use std::time::Duration;

/// Time without a change after which a network manager is done with a returned netdev. NetworkManager takes up to some
/// tenths of a second on a busy node.
const QUIET: Duration = Duration::from_secs(1);

/// Maximum wait for network managers.
const LIMIT: Duration = Duration::from_secs(5);

/// Pause between two observations.
const PAUSE: Duration = Duration::from_millis(50);

/// Says in the record that an attachment that had something of the node's for SMC-R is restored, as long as the node's lock
/// is held: another one that ends would leave to it what both have had. Where managers are waited for, that is said after it.
/// Should this be killed before IPAM was asked, the addresses are given back by DEL, or some minutes later by another ADD.
pub(super) fn leave_to_nobody<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    restored: &Restored,
) {
    let has_nodes = attachment.smc.as_ref().is_some_and(Smc::has_nodes);
    if has_nodes && !restored.has_to_outlast {
        teardown::mark(node, attachment, Phase::Restored);
    }
}

/// Waits until managers are quiet, without the node's lock, and restores again what one has taken away
/// ([`plan::taken_away`]). Rails that are home after that, while something else is not, are left to other owners.
/// `tried_before`: another verb did.
pub(super) fn managers<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
    pod: Option<&K::Pod>,
    tried_before: bool,
    mut restored: Result<Restored, Incomplete>,
) -> Result<Restored, Incomplete> {
    let has_waited = watched(&restored).is_some();
    let end = node.kernel.now() + LIMIT;
    let mut quiet = node.kernel.now() + QUIET;
    let mut is_taken = false;
    while let Some(seen) = watched(&restored)
        && node.kernel.now() < quiet.min(end)
    {
        node.kernel.pause(PAUSE);
        let now = match node.kernel.observe(None) {
            Ok(now) => now,
            Err(error) => {
                log::warn!("{error}");
                continue;
            }
        };
        is_taken = plan::taken_away(attachment, &seen.rails, (&seen.observed, &now));
        if !is_taken {
            continue;
        }
        log::info!("a network manager has taken addresses away that were restored");
        let _moves = match node.store.lock_node() {
            Ok(moves) => moves,
            Err(error) => {
                log::warn!("{error}");
                continue;
            }
        };
        restored = teardown::restore(node, pod, attachment, tried_before);
        is_taken = false;
        quiet = node.kernel.now() + QUIET;
    }
    let taken = "a network manager takes addresses away that were restored";
    match restored {
        Ok(_) if is_taken => Err(vec![taken.to_owned()].into()),
        Ok(restored) if has_waited => leave_smc(node, attachment, pod).map(|()| restored),
        Ok(restored) => Ok(restored),
        Err(incomplete) => {
            if !is_taken {
                leave(node, attachment, &incomplete);
            }
            Err(incomplete)
        }
    }
}

/// Records the rails that are back on the host as returned, after a verb that failed for another reason: from now on they
/// may have other owners.
pub(super) fn leave<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
    incomplete: &Incomplete,
) {
    let before = attachment.clone();
    for index in incomplete.home() {
        attachment.rails[*index].stage = Stage::Returned;
    }
    if *attachment != before {
        teardown::mark(node, attachment, attachment.phase);
    }
}

/// Returns the restored rails that network managers may change.
pub(super) fn watched(restored: &Result<Restored, Incomplete>) -> Option<&Restored> {
    let restored = match restored {
        Ok(restored) => Some(restored),
        Err(incomplete) => incomplete.restored.as_deref(),
    };
    restored.filter(|it| it.has_to_outlast)
}

/// Removes SMC-R settings that the pod shared with one that ended meanwhile. Each has left them to the other; the last
/// one whose record is not marked as restored removes them.
fn leave_smc<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
    pod: Option<&K::Pod>,
) -> Result<(), Incomplete> {
    if !attachment.smc.as_ref().is_some_and(Smc::is_set) {
        return Ok(());
    }
    let moves = node.store.lock_node();
    let _moves = moves.map_err(|error| Incomplete::from(vec![error.to_string()]))?;
    let left = smcr::apply::take_away(node.smcr(), pod, attachment);
    if !left.is_empty() {
        return Err(left.into());
    }
    teardown::mark(node, attachment, Phase::Restored);
    Ok(())
}
