// SPDX-License-Identifier: Apache-2.0
//! The node's hardware, looked at from asynchronous code.

use rdma_netns::{DeviceAddress, Inventory, Linux};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{sync::Semaphore, task::JoinError};

/// Where the hardware is seen.
#[derive(Clone, Debug)]
pub struct Hardware {
    sysfs: PathBuf,
    dev: PathBuf,
    procfs: PathBuf,
    storage: Arc<Mutex<Storage>>,
    /// One thread at a time waits for the accelerators' driver, so that one that hangs has no more of them.
    driver: Arc<Semaphore>,
}

/// The kernel's users of devices: those that a device had once are its users for good, as NFS ends a connection
/// that is idle, and a resource's devices had better stay the same.
#[derive(Debug, Default)]
struct Storage(BTreeMap<DeviceAddress, Vec<String>>);

impl Storage {
    fn remember(&mut self, inventory: &mut Inventory) {
        for function in &mut inventory.functions {
            let Some(hca) = function.hcas.first_mut() else {
                continue;
            };
            if hca.kernel_users.is_empty() {
                let before = self.0.get(&function.device.address);
                hca.kernel_users = before.cloned().unwrap_or_default();
            } else {
                let users = hca.kernel_users.clone();
                self.0.insert(function.device.address.clone(), users);
            }
        }
    }
}

/// The hardware could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum HardwareError {
    /// sysfs could not be read.
    #[error(transparent)]
    Unreadable(#[from] rdma_netns::ObserveError),
    /// The thread that looked did not end well.
    #[error("looking at the hardware did not come to its end: {0}")]
    Stopped(#[from] JoinError),
}

impl Hardware {
    /// As `sysfs` and `dev` show it.
    pub fn new(sysfs: &Path, dev: &Path) -> Self {
        Self {
            sysfs: sysfs.to_owned(),
            dev: dev.to_owned(),
            procfs: PathBuf::from("/proc"),
            storage: Arc::default(),
            driver: Arc::new(Semaphore::new(1)),
        }
    }

    /// The same, with procfs elsewhere.
    pub fn with_procfs(self, procfs: &Path) -> Self {
        Self {
            procfs: procfs.to_owned(),
            ..self
        }
    }

    /// The kernel, as it is seen there, for who may wait for it.
    pub fn kernel(&self) -> Linux {
        Linux::with_roots(&self.sysfs, &self.dev)
    }

    /// All of it, now.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub fn look(&self) -> Result<Inventory, HardwareError> {
        let mut inventory = self.kernel().inventory()?;
        let storage = self.storage.lock();
        let mut storage = storage.unwrap_or_else(PoisonError::into_inner);
        storage.remember(&mut inventory);
        Ok(inventory)
    }

    /// Which devices there are, and not how they are: no device's firmware is waited for.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub fn presence(&self) -> Result<Inventory, HardwareError> {
        Ok(self.kernel().inventory_without_ports()?)
    }

    /// The same, on a thread that may wait for the disk.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub async fn presence_aside(&self) -> Result<Inventory, HardwareError> {
        let hardware = self.clone();
        tokio::task::spawn_blocking(move || hardware.presence()).await?
    }

    /// All of it, on a thread that may wait for the disk.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub async fn look_aside(&self) -> Result<Inventory, HardwareError> {
        let hardware = self.clone();
        tokio::task::spawn_blocking(move || hardware.look()).await?
    }

    /// What device plugins call accelerators ([`rdma_netns::accelerator_names`]), on a thread that may wait for the
    /// driver.
    ///
    /// # Errors
    /// The thread did not end well.
    pub async fn accelerator_names_aside(
        &self,
    ) -> Result<BTreeMap<String, DeviceAddress>, HardwareError> {
        let Self {
            sysfs,
            procfs,
            driver,
            ..
        } = self.clone();
        let turn = driver.acquire_owned().await;
        let names = move || {
            let _turn = turn;
            rdma_netns::accelerator_names(&sysfs, &procfs)
        };
        Ok(tokio::task::spawn_blocking(names).await?)
    }

    /// Whether the character device `name` has the numbers `major`, `minor` in `/dev/infiniband`.
    pub fn has_node(&self, name: &str, major: u32, minor: u32) -> bool {
        fs::metadata(self.dev.join("infiniband").join(name)).is_ok_and(|found| {
            found.file_type().is_char_device()
                && nix::sys::stat::major(found.rdev()) == u64::from(major)
                && nix::sys::stat::minor(found.rdev()) == u64::from(minor)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn storage_whose_connection_is_idle_is_still_storage() {
        let inventory = |users: &[&str]| -> Inventory {
            let hca = json!({"name": "mlx5_0", "kernel_users": users});
            let function = json!({"address": "0000:3b:00.0", "hcas": [hca]});
            serde_json::from_value(json!({"functions": [function]})).expect("an inventory")
        };
        let mut storage = Storage::default();
        for (seen, expected) in [
            (&[][..], &[][..]),
            (&["rpcrdma"], &["rpcrdma"]),
            (&[], &["rpcrdma"]),
        ] {
            let mut inventory = inventory(seen);
            storage.remember(&mut inventory);
            assert_eq!(inventory.functions[0].hcas[0].kernel_users, expected);
        }
    }
}
