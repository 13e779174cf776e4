// SPDX-License-Identifier: Apache-2.0
//! Signals that end `install` and `uninstall`. With `--stay`, `uninstall` waits for them after its work, because
//! kubelet would restart an ended program.

use crate::cannot;
use anyhow::Result;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};
use std::{os::fd::AsFd, time::Duration};

/// Signals that end the program. They are blocked, and the program waits for them. A container's first process must
/// handle these signals itself, because the kernel ignores a signal without a handler for this process (`signal(7)`,
/// `pid_namespaces(7)`).
pub(super) struct Ends(SignalFd);

const WAIT: &str = "wait for SIGTERM";

pub(super) fn is_first() -> bool {
    std::process::id() == 1
}

impl Ends {
    /// Blocks the signals for this thread, and for threads that this thread starts later.
    ///
    /// # Errors
    /// The kernel refuses the system call.
    pub(super) fn held() -> Result<Self> {
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
        let blocked = signals.thread_block();
        let pending = blocked.and_then(|()| SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC));
        pending
            .map(Self)
            .map_err(|error| cannot(WAIT)(error.into()))
    }

    /// Returns true if one of the signals arrives within `time`.
    ///
    /// # Errors
    /// The kernel refuses the system call.
    pub(super) fn within(&self, time: Duration) -> Result<bool> {
        let limit = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], limit) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(error) => Err(cannot(WAIT)(error.into())),
        }
    }
}
