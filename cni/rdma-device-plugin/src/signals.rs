// SPDX-License-Identifier: Apache-2.0
//! Signals of the daemon. As a container's first process, the daemon must handle signals from its start on, because the
//! kernel ignores them by default for such a process (`pid_namespaces(7)`).

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Handlers of the daemon's signals.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// Meaning of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// SIGTERM or SIGINT.
    End,
    /// SIGHUP.
    Reload,
}

impl Signals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn taken() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Received {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Received::End,
            _ = self.interrupt.recv() => Received::End,
            _ = self.hangup.recv() => Received::Reload,
        }
    }

    /// Waits for a signal to end.
    pub async fn end(&mut self) {
        while self.next().await != Received::End {}
    }
}
