// SPDX-License-Identifier: Apache-2.0
//! Drivers that were bound anew: the kernel has made their devices when it answers, and udev names them a moment later.

use attachments::Attachment;
use rdma_netns::{Kernel, Op};
use std::time::Duration;

/// Time limit for udev's renaming. It expires if another program gave the recorded names. The restore then finds the
/// devices by PCI address.
const NAMING: Duration = Duration::from_secs(2);

const POLL: Duration = Duration::from_millis(10);

/// Returns true if a driver makes its devices anew with `op`.
pub(super) fn is_rebound(op: &Op) -> bool {
    matches!(op, Op::RebindDriver { .. } | Op::BindDriver { .. })
}

/// Waits until the devices of such drivers are on the host, and are called as they were.
pub(super) fn wait<K: Kernel>(kernel: &K, attachment: &Attachment) {
    let deadline = kernel.now() + NAMING;
    loop {
        match kernel.observe(None) {
            Ok(observed) if plan::are_named(attachment, &observed) => return,
            Ok(_) => {}
            Err(error) => log::warn!("{error}"),
        }
        if kernel.now() >= deadline {
            log::warn!("devices have other names since their driver was bound anew");
            return;
        }
        kernel.pause(POLL);
    }
}
