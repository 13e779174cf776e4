// SPDX-License-Identifier: Apache-2.0
//! Signals of the daemon. A container's first process must install handlers at its start: the kernel ignores a signal
//! without a handler for such a process (`pid_namespaces(7)`).

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Handlers of the daemon's signals.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// Meaning of a received signal.
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
    /// The kernel refuses a handler.
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

    /// Waits for SIGTERM or SIGINT.
    pub async fn end(&mut self) {
        while self.next().await != Received::End {}
    }
}
