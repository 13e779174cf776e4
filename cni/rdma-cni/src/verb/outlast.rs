// SPDX-License-Identifier: Apache-2.0
//! Restored netdevs whose addresses a network manager removes a moment later.

use super::{Node, teardown};
use crate::apply::{Incomplete, Restored};
use attachments::{Attachment, Phase, Smc, Stage};
use rdma_netns::Kernel;
use std::time::Duration;

/// Quiet time after which a network manager is expected to make no more changes to a returned netdev. NetworkManager
/// needs up to some tenths of a second on a busy node.
const QUIET: Duration = Duration::from_secs(1);

/// Maximum wait for network managers.
const LIMIT: Duration = Duration::from_secs(5);

/// Pause between two observations.
const PAUSE: Duration = Duration::from_millis(50);

/// Records that an attachment with node-wide SMC-R settings is restored, while the node's lock is held. Without this
/// record, another attachment that ends would leave the shared settings for this attachment to remove. If this verb
/// waits for network managers, it records the restore later. If this process is killed before it calls IPAM, the
/// addresses are released by DEL, or by another ADD some minutes later.
pub(super) fn record_restored<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    restored: &Restored,
) {
    let has_nodes = attachment.smc.as_ref().is_some_and(Smc::has_nodes);
    if has_nodes && !restored.has_to_outlast {
        teardown::mark(node, attachment, Phase::Restored);
    }
}

/// Waits until network managers are quiet, without the node's lock, and restores addresses that a manager has removed
/// ([`plan::taken_away`]). If the restore remains incomplete, rails on the host become free for other owners.
/// `tried_before`: an earlier verb has tried the restore.
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
                log::warn!(
                    "{}: cannot observe a network manager's changes: {error}",
                    attachment.key
                );
                continue;
            }
        };
        is_taken = plan::taken_away(attachment, &seen.rails, (&seen.observed, &now));
        if !is_taken {
            continue;
        }
        log::info!("a network manager removed addresses that rdma-cni had restored");
        let _moves = match node.store.lock_node() {
            Ok(moves) => moves,
            Err(error) => {
                log::warn!(
                    "{}: {error}; addresses that a network manager removed stay missing",
                    attachment.key
                );
                continue;
            }
        };
        restored = teardown::restore(node, pod, attachment, tried_before);
        is_taken = false;
        quiet = node.kernel.now() + QUIET;
    }
    let taken = "a network manager keeps removing addresses that rdma-cni restores";
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

/// Records rails on the host as returned, after the verb failed because of another rail. Returned rails are free for
/// other owners.
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

/// Removes SMC-R settings that the pod shared with an attachment that has also ended. Each of the two left the settings
/// for the other to remove. The last attachment that is not recorded as restored removes them.
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
