//! A program of a DaemonSet does not end: kubelet would start it again.

use nix::sys::signal::{SigSet, Signal};
use std::io;

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

    /// Waits for one, which may have come already.
    ///
    /// # Errors
    /// The system refuses it.
    pub(super) fn wait(&self) -> io::Result<()> {
        self.0.wait()?;
        Ok(())
    }
}
