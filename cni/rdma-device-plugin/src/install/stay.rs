// SPDX-License-Identifier: Apache-2.0
//! A program of a DaemonSet does not end: kubelet would start it again.

use nix::{
    libc,
    sys::signal::{SigSet, Signal},
};
use std::{io, time::Duration};

/// The signals that end the program, held back from now on. The first process of a container has to
/// take them itself: the kernel does nothing by default there (`signal(7)`, `pid_namespaces(7)`).
pub(super) struct Ends(SigSet);

/// Whether this is a container's first process.
pub(super) fn is_first() -> bool {
    std::process::id() == 1
}

impl Ends {
    /// Holds them back, for this thread and those that it starts.
    ///
    /// # Errors
    /// The system refuses it.
    pub(super) fn held() -> io::Result<Self> {
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
        signals.thread_block()?;
        Ok(Self(signals))
    }

    /// Whether one comes within `time`.
    ///
    /// # Errors
    /// The system refuses it.
    pub(super) fn within(&self, time: Duration) -> io::Result<bool> {
        let limit = libc::timespec {
            tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        let none = std::ptr::null_mut();
        // SAFETY: the set and the limit live until the call returns; no information is asked for.
        match unsafe { libc::sigtimedwait(self.0.as_ref(), none, &raw const limit) } {
            -1 => match io::Error::last_os_error() {
                over if over.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
                other if other.kind() == io::ErrorKind::Interrupted => Ok(false),
                error => Err(error),
            },
            _ => Ok(true),
        }
    }
}
