// SPDX-License-Identifier: Apache-2.0
//! Synchronizes tests that start programs with tests that hold locks.

use std::{
    cell::Cell,
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

/// All verbs are threads of one process. A new child process has the open locks of all threads, and so holds them,
/// until it executes another program.
static GATE: RwLock<()> = RwLock::new(());

/// Waits until no other test runs a verb, and keeps other tests from running verbs while the guard exists. Meanwhile
/// the test can start child processes.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    GATE.write().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// True if this thread has already passed the gate. The thread must not wait at the gate again: it would wait
    /// behind a thread that waits to be alone, and that thread waits for this thread.
    static RUNS: Cell<bool> = const { Cell::new(false) };
}

/// While the guard exists, tests that must be alone wait.
pub(crate) fn beside_others() -> RwLockReadGuard<'static, ()> {
    GATE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Lets this thread's later verbs pass the gate without waiting, while another thread keeps the gate open.
pub(crate) fn pass_with_another() {
    RUNS.set(true);
}

/// Runs a verb by calling `run`. `starts` is true if the verb starts a program.
pub(crate) fn pass<T>(starts: bool, run: impl FnOnce() -> T) -> T {
    let outermost = !RUNS.replace(true);
    assert!(outermost || !starts, "IPAM is started within a run");
    let _alone = starts.then(alone);
    let _beside = (outermost && !starts).then(beside_others);
    let done = run();
    RUNS.set(!outermost);
    done
}
