// SPDX-License-Identifier: Apache-2.0
//! Restored netdevs whose addresses a network manager removes shortly after the restore.

use super::restoring;
use crate::{
    apply::{Incomplete, Restored, Tries},
    node::Node,
};
use attachments::{Attachment, Phase, Smc, Stage, store::AttachmentLock};
use rdma_netns::Kernel;
use std::time::Duration;

/// Time without changes after which this module expects no more changes by a network manager. NetworkManager needs up
/// to some tenths of a second on a busy node.
const QUIET: Duration = Duration::from_secs(1);

/// Maximum time to observe network managers.
const LIMIT: Duration = Duration::from_secs(5);

const PAUSE: Duration = Duration::from_millis(50);

/// Records, under the node's lock, that an attachment with node-wide SMC-R settings is restored. Otherwise another
/// attachment that ends would leave the shared settings to this attachment. If this verb waits for network managers, it
/// records the restore after the wait. If this process is killed before it calls IPAM, DEL releases the addresses, or
/// another ADD releases them some minutes later.
pub(super) fn record_restored<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    restored: &Restored,
) {
    let has_nodes = attachment.smc.as_ref().is_some_and(Smc::has_nodes);
    if has_nodes && !restored.has_to_outlast {
        restoring::mark(node, attachment, Phase::Restored);
    }
}

/// Waits without the node's lock until network managers make no more changes, and restores addresses that a manager
/// removed ([`plan::taken_away`]). If the restore remains incomplete, rails on the host still become free for other
/// pods, unless such an address is missing.
pub(super) fn managers<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
    pod: Option<&K::Pod>,
    lock: &AttachmentLock,
    tries: Tries,
    mut restored: Result<Restored, Incomplete>,
) -> Result<Restored, Incomplete> {
    let has_waited = watched(&restored).is_some();
    let mut end = node.kernel.now() + LIMIT;
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
        is_taken = plan::taken_away(attachment, &seen.rails, &seen.observed, &now);
        if !is_taken {
            continue;
        }
        log::info!("a network manager removed addresses that rdma-cni had restored");
        let begin = node.kernel.now();
        let _moves = match node.store.lock_node(lock) {
            Ok(moves) => moves,
            Err(error) => {
                log::warn!(
                    "{}: {error}; addresses that a network manager removed stay missing",
                    attachment.key
                );
                continue;
            }
        };
        restored = restoring::restore(node, pod, attachment, tries);
        is_taken = false;
        quiet = node.kernel.now() + QUIET;
        // the time for the lock and the restore does not count, because this verb does not observe the manager
        // meanwhile
        end += node.kernel.now() - begin;
    }
    // true if the manager changed the netdev in the last second of `LIMIT`
    let is_active = watched(&restored).is_some() && node.kernel.now() < quiet;
    let taken = "a network manager keeps removing addresses that rdma-cni restores";
    match restored {
        Ok(_) if is_taken || is_active => Err(Incomplete::of(taken)),
        Ok(restored) if has_waited => leave_smc(node, attachment, pod, lock).map(|()| restored),
        Ok(restored) => Ok(restored),
        Err(incomplete) => {
            if !is_taken {
                leave(node, attachment, &incomplete);
            }
            Err(incomplete)
        }
    }
}

/// Records rails on the host as returned, after the verb failed because of another rail. Other pods may then get the
/// returned rails.
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
        restoring::mark(node, attachment, attachment.phase);
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

/// Removes the SMC-R settings that another attachment, which ended during the wait for network managers, left to this
/// attachment. The last attachment that is not recorded as restored removes shared settings.
fn leave_smc<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
    pod: Option<&K::Pod>,
    lock: &AttachmentLock,
) -> Result<(), Incomplete> {
    if !attachment.smc.as_ref().is_some_and(Smc::is_set) {
        return Ok(());
    }
    let moves = node.store.lock_node(lock);
    let _moves = moves.map_err(Incomplete::of)?;
    let left = smcr::apply::take_away(node.smcr(), pod, attachment);
    if !left.is_empty() {
        return Err(left.into());
    }
    restoring::mark(node, attachment, Phase::Restored);
    Ok(())
}
