// SPDX-License-Identifier: Apache-2.0
//! Signals that end `install` and `uninstall`. With `--stay`, `uninstall` waits for them after its work, because
//! kubelet would restart an ended program.

use crate::cannot;
use anyhow::Result;
use nix::{
    libc,
    sys::signal::{SigSet, Signal},
};
use std::{io, time::Duration};

/// Signals that end the program. They are blocked, and the program waits for them. A container's first process must
/// handle these signals itself, because the kernel ignores a signal without a handler for this process (`signal(7)`,
/// `pid_namespaces(7)`).
pub(super) struct Ends(SigSet);

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
        let blocked = signals.thread_block().map_err(io::Error::from);
        blocked.map_err(cannot(WAIT))?;
        Ok(Self(signals))
    }

    /// Returns true if one of the signals arrives within `time`.
    ///
    /// # Errors
    /// The kernel refuses the system call.
    pub(super) fn within(&self, time: Duration) -> Result<bool> {
        let limit = libc::timespec {
            tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        let none = std::ptr::null_mut();
        // SAFETY: the signal set and `limit` live until the call returns. The null pointer requests no `siginfo_t`.
        match unsafe { libc::sigtimedwait(self.0.as_ref(), none, &raw const limit) } {
            -1 => match io::Error::last_os_error() {
                over if over.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
                other if other.kind() == io::ErrorKind::Interrupted => Ok(false),
                error => Err(cannot(WAIT)(error)),
            },
            _ => Ok(true),
        }
    }
}
