// SPDX-License-Identifier: Apache-2.0
//! Waiting for the kernel, with an end.

use std::{
    thread,
    time::{Duration, Instant},
};

/// As long as anything may take on a slow machine before it counts as never.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Polls until `done`; panics with `what` when [`PATIENCE`] is over.
#[track_caller]
pub fn until(what: &str, done: impl FnMut() -> bool) {
    assert!(within(PATIENCE, done), "not within {PATIENCE:?}: {what}");
}

/// Polls until `done` or until `limit` is over; says which of both it was.
pub fn within(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
}
