// SPDX-License-Identifier: Apache-2.0
//! Netdevs of the host that are changed for a moment, so that the kernel keeps their default routers.

use super::{Node, teardown};
use crate::apply::ApplyError;
use attachments::{Attachment, Phase, Spared};
use rdma_netns::Kernel;

/// Writes down that `spared` are about to be changed: should this be killed, the next verb takes that back.
pub(super) fn record<K: Kernel>(node: &Node<'_, K>, attachment: &Attachment, spared: &[Spared]) {
    let changed = Attachment {
        spared: spared.to_vec(),
        ..attachment.clone()
    };
    let phase = match changed.phase {
        Phase::Attached => Phase::Detaching,
        phase => phase,
    };
    teardown::mark(node, &changed, phase);
}

/// Restores `accept_ra` of the recorded netdevs that still have the temporary value, and clears the list in the record.
pub(super) fn take_back<K: Kernel>(node: &Node<'_, K>, attachment: &mut Attachment) {
    if attachment.spared.is_empty() {
        return;
    }
    let take_back = || -> Result<(), ApplyError> {
        let observed = node.kernel.observe(None)?;
        let left = plan::still_spared(&attachment.spared, &observed);
        plan::spare_no_more(&left).try_for_each(|op| node.kernel.execute(&op, None))?;
        Ok(())
    };
    match take_back() {
        Ok(()) => {
            attachment.spared.clear();
            record(node, attachment, &[]);
        }
        Err(error) => log::warn!("{error}"),
    }
}
