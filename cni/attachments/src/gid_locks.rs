// SPDX-License-Identifier: Apache-2.0
//! Locks of addresses whose GIDs ADD awaits. Two netdevs can have one address, on two VLANs of one NIC, and then the
//! RDMA device has a GID for each. Nothing in a GID tells its netdev's namespace, so ADD takes the GID that is new. Two
//! such ADDs at once would each see two new GIDs.

use crate::{
    lock_file::LockFile,
    store::{Store, StoreError, names},
};
use std::{collections::BTreeSet, net::IpAddr, path::PathBuf};

/// Locks of addresses on RDMA devices. Dropping them releases the locks, and removes their files.
#[derive(Debug, Default)]
pub struct GidLocks(Vec<LockFile>);

impl Drop for GidLocks {
    fn drop(&mut self) {
        self.0.drain(..).for_each(LockFile::discard);
    }
}

impl Store {
    /// Waits for the locks of `addresses`, each with the index of its RDMA device. The caller holds its attachment's
    /// lock, and must not wait for another lock while it holds these locks.
    pub fn lock_gids(&self, addresses: &BTreeSet<(u32, IpAddr)>) -> Result<GidLocks, StoreError> {
        let mut locks = GidLocks::default();
        // every process takes the locks in this order, so no two processes wait for each other
        for (device, address) in addresses {
            let path = self.gids().join(format!("{device}@{address}.lock"));
            locks.0.push(LockFile::wait(path, self.lock_deadline())?);
        }
        Ok(locks)
    }

    /// Removes lock files that killed processes left. The next CNI command tries again if a file cannot be removed.
    pub(crate) fn sweep_gids(&self) {
        for name in names(&self.gids()).unwrap_or_default() {
            if let Ok(Some(lock)) = LockFile::attempt(self.gids().join(name)) {
                lock.discard();
            }
        }
    }

    fn gids(&self) -> PathBuf {
        self.root().join("gids")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cni_protocol::lock::LockDeadline;
    use std::{fs, time::Instant};

    #[test]
    fn an_address_has_one_holder_on_each_device() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::within(state.path(), LockDeadline::until(Instant::now()));
        let [one, other] = ["10.7.0.2", "fd00::2"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let held = store.lock_gids(&[(0, one), (0, other)].into()).unwrap();
        let refused = store.lock_gids(&[(1, one), (0, other)].into()).unwrap_err();
        assert!(refused.is_held(), "{refused}");
        let on_another_device = store.lock_gids(&[(1, one), (1, other)].into()).unwrap();
        drop(held);
        drop(on_another_device);
        drop(store.lock_gids(&[(0, one), (0, other)].into()).unwrap());
        assert_eq!(fs::read_dir(store.gids()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_a_killed_process_left_is_swept() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::new(state.path());
        let held = store
            .lock_gids(&[(0, "10.7.0.2".parse().unwrap())].into())
            .unwrap();
        fs::write(store.gids().join("0@10.7.0.3.lock"), "").unwrap();
        store.sweep(None, None).unwrap();
        let left = names(&store.gids()).unwrap();
        assert_eq!(left.into_iter().collect::<Vec<_>>(), ["0@10.7.0.2.lock"]);
        drop(held);
    }
}
