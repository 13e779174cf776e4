// SPDX-License-Identifier: Apache-2.0
//! The node's hardware, looked at from asynchronous code.

use attachments::{
    Store,
    pods::{self, PodRails},
};
use rdma_netns::{DeviceAddress, Inventory, Kernel, Linux};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{sync::Semaphore, task::JoinError};

/// Where the hardware is seen.
#[derive(Clone, Debug)]
pub struct Hardware {
    sysfs: PathBuf,
    dev: PathBuf,
    procfs: PathBuf,
    /// Directory of the records that say what pods have; none: not looked at.
    state_dir: Option<PathBuf>,
    memory: Arc<Mutex<Memory>>,
    /// One thread at a time waits for the accelerators' driver, so that one that hangs has no more of them.
    driver: Arc<Semaphore>,
}

/// What is known of devices from before.
#[derive(Debug, Default)]
struct Memory {
    /// The kernel's users of devices: those that a device had once are its users for good, as NFS ends a connection
    /// that is idle, and a resource's devices had better stay the same.
    storage: BTreeMap<DeviceAddress, Vec<String>>,
    /// The function that each RDMA device had, by name: one without a parent in sysfs is known by its netdev alone,
    /// which a pod can have.
    functions: BTreeMap<String, DeviceAddress>,
}

impl Memory {
    fn remember_storage(&mut self, inventory: &mut Inventory) {
        for function in &mut inventory.functions {
            let Some(hca) = function.hcas.first_mut() else {
                continue;
            };
            if hca.kernel_users.is_empty() {
                let before = self.storage.get(&function.device.address);
                hca.kernel_users = before.cloned().unwrap_or_default();
            } else {
                let users = hca.kernel_users.clone();
                self.storage.insert(function.device.address.clone(), users);
            }
        }
    }

    /// Gives unpaired RDMA devices the function that they had, else the one that the record of a pod's rail names.
    fn pair(&mut self, inventory: &mut Inventory, rails: impl FnOnce() -> Vec<PodRails>) {
        let names: Vec<String> = inventory
            .unpaired
            .iter()
            .map(|it| it.name.clone())
            .collect();
        if names.iter().any(|it| !self.functions.contains_key(it)) {
            for rail in rails().into_iter().flat_map(|pod| pod.rails) {
                let function = rail.rdma.zip(rail.devices.into_iter().next());
                let is_known = |name: &String| self.functions.contains_key(name);
                self.functions
                    .extend(function.filter(|(name, _)| !is_known(name)));
            }
        }
        for name in names {
            if let Some(address) = self.functions.get(&name) {
                inventory.pair(&name, address);
            }
        }
        for function in &inventory.functions {
            let own = function.hcas.first().filter(|hca| !hca.soft);
            let own = own.map(|hca| (hca.name.clone(), function.device.address.clone()));
            self.functions.extend(own);
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
            state_dir: None,
            memory: Arc::default(),
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

    /// The same, with the records of what pods have below `state_dir`.
    pub fn with_records(self, state_dir: &Path) -> Self {
        Self {
            state_dir: Some(state_dir.to_owned()),
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
        self.pair(&mut inventory).remember_storage(&mut inventory);
        Ok(inventory)
    }

    /// Which devices there are, and not how they are: no device's firmware is waited for.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub fn presence(&self) -> Result<Inventory, HardwareError> {
        let mut inventory = self.kernel().inventory_without_ports()?;
        drop(self.pair(&mut inventory));
        Ok(inventory)
    }

    fn pair(&self, inventory: &mut Inventory) -> MutexGuard<'_, Memory> {
        let rails = || {
            let state_dir = self.state_dir.as_deref();
            let boot_id = state_dir.and_then(|_| self.kernel().boot_id().ok());
            let records = state_dir.zip(boot_id);
            records.map_or_else(Vec::new, |(state_dir, id)| {
                pods::rails(&Store::new(state_dir), &id)
            })
        };
        let memory = self.memory.lock();
        let mut memory = memory.unwrap_or_else(PoisonError::into_inner);
        memory.pair(inventory, rails);
        memory
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
        let mut memory = Memory::default();
        for (seen, expected) in [
            (&[][..], &[][..]),
            (&["rpcrdma"], &["rpcrdma"]),
            (&[], &["rpcrdma"]),
        ] {
            let mut inventory = inventory(seen);
            memory.remember_storage(&mut inventory);
            assert_eq!(inventory.functions[0].hcas[0].kernel_users, expected);
        }
    }
}
