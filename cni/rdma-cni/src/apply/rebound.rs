// SPDX-License-Identifier: Apache-2.0
//! Waits for the devices of a driver that was bound again. The kernel makes the devices before the bind returns. Udev
//! renames them shortly afterwards.

use attachments::Attachment;
use rdma_netns::{Kernel, Op};
use std::time::Duration;

/// Time limit for udev to rename the devices. If a program other than udev gave the recorded names, the wait ends
/// without success. The restore then finds the devices by PCI address.
const NAMING: Duration = Duration::from_secs(2);

const POLL: Duration = Duration::from_millis(10);

/// Returns true if `op` binds a driver. The kernel then makes new devices.
pub(super) fn is_rebound(op: &Op) -> bool {
    matches!(op, Op::RebindDriver { .. } | Op::BindDriver { .. })
}

/// Waits, at most `NAMING`, until the attachment's rebound devices are on the host and have their recorded names.
pub(super) fn wait<K: Kernel>(kernel: &K, attachment: &Attachment) {
    let deadline = kernel.now() + NAMING;
    loop {
        match kernel.observe(None) {
            Ok(observed) if plan::are_named(attachment, &observed) => return,
            Ok(_) => {}
            Err(error) => log::warn!("{}: {error}; observing again", attachment.key),
        }
        if kernel.now() >= deadline {
            log::warn!(
                "{}: devices do not have their recorded names after their driver was bound again",
                attachment.key
            );
            return;
        }
        kernel.pause(POLL);
    }
}
