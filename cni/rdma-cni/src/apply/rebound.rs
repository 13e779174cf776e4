// SPDX-License-Identifier: Apache-2.0
//! Drivers that were bound again. When the bind returns, the kernel has made their devices; udev names the devices a
//! moment later.

use attachments::Attachment;
use rdma_netns::{Kernel, Op};
use std::time::Duration;

/// Time limit for udev's renaming. The limit expires if another program gave the recorded names. The restore then finds
/// the devices by PCI address.
const NAMING: Duration = Duration::from_secs(2);

const POLL: Duration = Duration::from_millis(10);

/// Returns true if `op` binds a driver, which makes its devices again.
pub(super) fn is_rebound(op: &Op) -> bool {
    matches!(op, Op::RebindDriver { .. } | Op::BindDriver { .. })
}

/// Waits until the attachment's devices are on the host and have their recorded names.
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
