// SPDX-License-Identifier: Apache-2.0
//! Synchronizes tests that start programs with tests that hold locks.

use std::{
    cell::Cell,
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

/// All verbs are threads of one process. A child that is being started has the locks of every other thread open until
/// it executes another program, and keeps them held.
static GATE: RwLock<()> = RwLock::new(());

/// Stops all other tests while the guard is held, so that children can be started.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    GATE.write().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// True if this thread holds the gate already. A nested program would wait for ever behind a thread that waits to
    /// be alone.
    static RUNS: Cell<bool> = const { Cell::new(false) };
}

/// Keeps tests that must be alone from running while the guard is held.
pub(crate) fn beside_others() -> RwLockReadGuard<'static, ()> {
    GATE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Lets this thread's later programs pass the gate with another thread, which keeps it open as long.
pub(crate) fn pass_with_another() {
    RUNS.set(true);
}

/// Runs the program, by `run`; `starts` is whether it starts another one.
pub(crate) fn pass<T>(starts: bool, run: impl FnOnce() -> T) -> T {
    let outermost = !RUNS.replace(true);
    assert!(outermost || !starts, "IPAM is started within a run");
    let _alone = starts.then(alone);
    let _beside = (outermost && !starts).then(beside_others);
    let done = run();
    RUNS.set(!outermost);
    done
}
