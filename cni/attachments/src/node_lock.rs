// SPDX-License-Identifier: Apache-2.0
//! The node's lock: who moves has it alone, who looks has it beside others.

use crate::store::{Lock, Store, StoreError, failed, open_lock};
use cni_protocol::lock::Access;
use std::fs;

impl Store {
    /// Waits for the node's lock, to have it alone: no two moves at a time, as two could swap the
    /// numbers of their character devices.
    ///
    /// # Errors
    /// Somebody else has it for too long.
    pub fn lock_node(&self) -> Result<Lock, StoreError> {
        self.node(Access::Alone)
    }

    /// Waits for the node's lock, to have it beside others: nothing is moved meanwhile.
    ///
    /// # Errors
    /// Somebody else has it alone for too long.
    pub fn share_node(&self) -> Result<Lock, StoreError> {
        self.node(Access::Shared)
    }

    /// Who waits to have it alone has the turn, and who comes later to share it waits for that one: else one
    /// that moves would wait as long as others come to share. The kernel lets these pass (`flock_lock_inode()`,
    /// `fs/locks.c`).
    fn node(&self, access: Access) -> Result<Lock, StoreError> {
        fs::create_dir_all(self.root()).map_err(failed("create", self.root()))?;
        let turn = self.root().join("lock.turn");
        let file = open_lock(&turn)?;
        let _turn = self.patience().wait(file).map_err(failed("lock", &turn))?;
        let path = self.root().join("lock");
        let file = open_lock(&path)?;
        let held = self.patience().wait_for(access, file);
        Ok(Lock::new(held.map_err(failed("lock", &path))?, path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cni_protocol::lock::{self, Patience};
    use std::{thread, time::Instant};

    #[test]
    fn who_waits_to_be_alone_is_not_overtaken() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::new(state.path());
        let first = store.share_node().unwrap();
        let beside = store.share_node().unwrap();
        let waiting = thread::spawn({
            let store = store.clone();
            move || store.lock_node().unwrap()
        });
        let turn = state.path().join("lock.turn");
        let is_taken = || lock::attempt(lock::open(&turn).unwrap()).unwrap().is_none();
        while !is_taken() {
            thread::yield_now();
        }
        let hasty = Store::within(state.path(), Patience::until(Instant::now()));
        assert!(hasty.share_node().unwrap_err().is_held());
        assert!(!waiting.is_finished(), "it is not alone yet");
        drop(first);
        drop(beside);
        let alone = waiting.join().unwrap();
        assert!(hasty.share_node().unwrap_err().is_held());
        drop(alone);
        let _both = (store.share_node().unwrap(), store.share_node().unwrap());
    }
}
