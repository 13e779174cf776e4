// SPDX-License-Identifier: Apache-2.0
//! Waits for a condition, with a time limit.

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

/// Time limit for an event. It suffices on an emulated machine that shares two CPUs with other machines.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Polls until `done` returns true. Panics with `what` after [`TIMEOUT`].
#[track_caller]
pub fn until(what: &str, done: impl FnMut() -> bool) {
    assert!(within(TIMEOUT, done), "not within {TIMEOUT:?}: {what}");
}

/// Polls until `done` returns true or until `limit` has passed. Returns true in the first case.
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

/// Sends `signal` to a process, and waits at most `limit` until it ends. Returns true if it ended by then; otherwise
/// sends SIGKILL and returns false.
pub fn ends(process: &mut Child, signal: Signal, limit: Duration) -> bool {
    let pid = i32::try_from(process.id()).expect("a pid");
    // an error is ignored, because the process may have ended
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

/// Returns the result of `work`, and prints its duration as [`Stopwatch`] measures it. Panics if this duration is
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
