// SPDX-License-Identifier: Apache-2.0
//! Descriptors from which the kernel's events come.

use std::{io, os::fd::AsRawFd};
use tokio::io::{Interest, unix::AsyncFd};

/// Waits until the source is readable; forever without a source.
pub(super) async fn readable<T: AsRawFd>(source: Option<&mut AsyncFd<T>>) {
    match source {
        Some(source) => match source.readable_mut().await {
            // the data is read completely, or found in the next turn
            Ok(mut guard) => guard.clear_ready(),
            Err(error) => {
                log::error!("waiting for events: {error}");
                std::future::pending().await
            }
        },
        None => std::future::pending().await,
    }
}

/// Registers the source with the runtime.
pub(super) fn register<T: AsRawFd>(source: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: both kinds of sources own one descriptor, which stays open and unchanged for their whole life.
    let registered = unsafe { AsyncFd::register_with_interest(source, Interest::READABLE) };
    Ok(registered?)
}
