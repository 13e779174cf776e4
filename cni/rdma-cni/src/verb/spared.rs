// SPDX-License-Identifier: Apache-2.0
//! Netdevs of the host that are changed for a moment, so that the kernel keeps their default routers.

use super::Node;
use crate::apply::ApplyError;
use attachments::{Attachment, Phase, Spared, store::StoreError};
use rdma_netns::Kernel;

/// Writes down that `more` netdevs besides `spared` are about to be changed: should this be killed, the next verb takes
/// that back.
///
/// # Errors
/// The record cannot be written, or cannot be read and stays as it is.
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

/// Restores `accept_ra` of the recorded netdevs that still have the temporary value, and clears the list in the record.
///
/// # Errors
/// Why it could not be restored: the record keeps the list.
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
    // the others as well
    done.fold(Ok(()), Result::and)?;
    attachment.spared.clear();
    if let Err(error) = record(node, attachment, &mut vec![], &[]) {
        log::warn!("{error}");
    }
    Ok(())
}
