// SPDX-License-Identifier: Apache-2.0
//! Who may run beside whom: programs that are started, and what holds locks meanwhile.

use std::{
    cell::Cell,
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

/// Here all processes are threads of one: a child that is being started has the locks of
/// every other thread open until it is another program, and keeps them taken.
static GATE: RwLock<()> = RwLock::new(());

/// Nothing else of these tests runs as long as this is held: children can be started.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    GATE.write().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// Whether this thread runs the program: one that is run meanwhile passes the gate with it, as it would wait for
    /// ever behind one that waits to be alone.
    static RUNS: Cell<bool> = const { Cell::new(false) };
}

/// Nothing that has to be alone runs as long as this is held.
pub(crate) fn beside_others() -> RwLockReadGuard<'static, ()> {
    GATE.read().unwrap_or_else(PoisonError::into_inner)
}

/// What this thread runs from now on passes the gate with another thread, which keeps it open as long.
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
