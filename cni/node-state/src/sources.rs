// SPDX-License-Identifier: Apache-2.0
//! File descriptors from which the daemon reads the kernel's events.

use rdma_netns::linux::monitor::Monitor;
use std::{io, os::fd::AsRawFd};
use tokio::io::{Interest, unix::AsyncFd};

/// Waits until the source is readable. Waits forever if `source` is `None`.
///
/// # Errors
/// tokio cannot wait for the source. The caller must drop the source, because each later call fails too.
pub(crate) async fn readable<T: AsRawFd>(source: Option<&mut AsyncFd<T>>) -> io::Result<()> {
    match source {
        Some(source) => {
            // mark as not readable: the caller reads all data now, or reads the rest at the next event
            source.readable_mut().await?.clear_ready();
            Ok(())
        }
        None => std::future::pending().await,
    }
}

pub(crate) fn register<T: AsRawFd>(source: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: each source owns one descriptor, which stays open and unchanged for the source's whole life.
    let registered = unsafe { AsyncFd::register_with_interest(source, Interest::READABLE) };
    Ok(registered?)
}

/// Returns true if the daemon gets the kernel's events of pods' netdevs.
pub(crate) fn covers_pods(monitor: Option<&Monitor>) -> bool {
    monitor.is_some_and(|monitor| monitor.losses().is_empty())
}
