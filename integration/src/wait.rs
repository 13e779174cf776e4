// SPDX-License-Identifier: Apache-2.0
//! Waiting for the kernel, with an end.

use crate::stopwatch::Stopwatch;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    process::Child,
    thread,
    time::{Duration, Instant},
};

/// Limit for any event on a slow machine: an emulated one whose two CPUs are shared with other machines.
pub const PATIENCE: Duration = Duration::from_secs(60);

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

/// Sends `signal` to a process, and waits for its end for `limit`. One that does not end gets SIGKILL; says which of
/// both it was.
pub fn ends(process: &mut Child, signal: Signal, limit: Duration) -> bool {
    let pid = i32::try_from(process.id()).expect("a pid");
    // one that has ended gets none
    let _ = kill(Pid::from_raw(pid), signal);
    let ended = within(limit, || {
        process.try_wait().expect("our own child").is_some()
    });
    if !ended {
        let _ = process.kill();
        let _ = process.wait();
    }
    ended
}

/// Returns the result of `work`, and prints how long it took, without what the machine was late. Panics if that is
/// `limit` or longer.
#[track_caller]
pub fn for_no_longer<T>(limit: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    let stopwatch = Stopwatch::start();
    let done = work();
    let took = stopwatch.elapsed();
    println!("{what}: {took:.1?}");
    assert!(took < limit, "{what} took {took:?}");
    done
}
