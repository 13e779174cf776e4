// SPDX-License-Identifier: Apache-2.0
//! The signals that a daemon is told something by. As a container's first process it has to take them
//! itself from its start on: the kernel does nothing by default there (`pid_namespaces(7)`).

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Those that a daemon takes.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// What one of them says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// SIGTERM or SIGINT
    End,
    /// SIGHUP
    Reload,
}

impl Signals {
    /// Takes them from now on.
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

    /// Waits for the next one.
    pub async fn next(&mut self) -> Told {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Told::End,
            _ = self.interrupt.recv() => Told::End,
            _ = self.hangup.recv() => Told::Reload,
        }
    }

    /// Waits until it is told to end.
    pub async fn end(&mut self) {
        while self.next().await != Told::End {}
    }
}
