// SPDX-License-Identifier: Apache-2.0
//! Netdevs of the host whose `accept_ra` `rdma-cni` changes temporarily, so that the kernel keeps their default
//! routers.

use crate::{apply::ApplyError, node::Node};
use attachments::{Attachment, Phase, Spared, store::StoreError};
use rdma_netns::Kernel;

/// Records the netdevs in `more` and `spared` before they are changed. If this process is killed, the next verb
/// restores them.
///
/// # Errors
/// The record cannot be written, or it cannot be read and stays unchanged.
pub(super) fn record<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    spared: &mut Vec<Spared>,
    more: &[Spared],
) -> Result<(), StoreError> {
    for it in more {
        if !spared.contains(it) {
            spared.push(it.clone());
        }
    }
    let phase = match attachment.phase {
        Phase::Attached => Phase::Detaching,
        phase => phase,
    };
    node.store.amend(&Attachment {
        spared: spared.clone(),
        phase,
        ..attachment.clone()
    })
}

/// Restores `accept_ra` of the recorded netdevs that still have the temporary value. Then clears the record's list.
///
/// # Errors
/// A netdev could not be restored. The record's list then stays.
pub(super) fn take_back<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
) -> Result<(), ApplyError> {
    if attachment.spared.is_empty() {
        return Ok(());
    }
    let observed = node.kernel.observe(None)?;
    let left = plan::still_spared(&attachment.spared, &observed);
    let done = plan::spare_no_more(&left).map(|op| node.kernel.execute(&op, None));
    // `fold` executes all operations, even after an error
    done.fold(Ok(()), Result::and)?;
    attachment.spared.clear();
    if let Err(error) = record(node, attachment, &mut vec![], &[]) {
        log::warn!(
            "{}: {error}; the next verb restores accept_ra of the recorded netdevs once more",
            attachment.key
        );
    }
    Ok(())
}
