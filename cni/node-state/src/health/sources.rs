// SPDX-License-Identifier: Apache-2.0
//! File descriptors from which the daemon reads the kernel's events.

use std::{io, os::fd::AsRawFd};
use tokio::io::{Interest, unix::AsyncFd};

/// Waits until the source is readable. Waits forever if `source` is `None`.
pub(super) async fn readable<T: AsRawFd>(source: Option<&mut AsyncFd<T>>) {
    match source {
        Some(source) => match source.readable_mut().await {
            // mark as not readable: the caller reads all data now, or reads the rest at the next event
            Ok(mut guard) => guard.clear_ready(),
            Err(error) => {
                log::error!("cannot wait for events of the kernel: {error}");
                std::future::pending().await
            }
        },
        None => std::future::pending().await,
    }
}

pub(super) fn register<T: AsRawFd>(source: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: each source owns one descriptor, which stays open and unchanged for the source's whole life.
    let registered = unsafe { AsyncFd::register_with_interest(source, Interest::READABLE) };
    Ok(registered?)
}
