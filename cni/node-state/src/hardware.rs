// SPDX-License-Identifier: Apache-2.0
//! Observation of the node's hardware, also from asynchronous code.

use attachments::{
    Store,
    pods::{self, PodRail, PodRails},
};
use rdma_netns::{
    DeviceAddress, GpuDirectReader, Hca, Inventory, Kernel, Linux, RdmaCgroup, pairing::is_erdma,
};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{sync::Semaphore, task::JoinError};

/// Observer of the node's hardware. Clones share the memory of earlier observations.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// Kernel interface. It remembers the netdevs of ports for observations without ports.
    kernel: Arc<Linux>,
    sysfs: PathBuf,
    dev: PathBuf,
    procfs: PathBuf,
    /// State directory of the records of pods' devices. `None`: the daemon reads no records.
    state_dir: Option<PathBuf>,
    memory: Arc<Mutex<Memory>>,
    /// Permit for the one thread that waits for the accelerators' driver. If the driver hangs, it blocks only this
    /// thread.
    driver: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Memory {
    /// Kernel users of each device, such as NFS. The daemon remembers them after they have ended: NFS closes idle
    /// connections, and a resource would otherwise gain and lose the device each time.
    storage: BTreeMap<DeviceAddress, Vec<String>>,
    /// Last known PCI function of each RDMA device without a parent in sysfs. The daemon finds the function only by the
    /// netdev, which may be in a pod.
    functions: BTreeMap<Identity, DeviceAddress>,
    gpudirect: GpuDirectReader,
}

/// Identity of an RDMA device without a parent in sysfs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    /// Node GUID. No program can change the GUID of an eRDMA device.
    Guid(String),
    /// Name. Only the identity of an RDMA device that is in another namespace in exclusive mode, because sysfs then shows
    /// no GUID, and that no record identifies by its character device. A pod with `NET_ADMIN` chooses the name of its
    /// RDMA devices, in shared mode the names of all RDMA devices of the node.
    Name(String),
}

impl Identity {
    fn of(hca: &Hca) -> Self {
        let guid = hca.node_guid.clone().map(Self::Guid);
        guid.unwrap_or_else(|| Self::Name(hca.name.clone()))
    }
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

    /// Returns the function of an unpaired RDMA device, with its sorting key: the kind of the identity (0: GUID,
    /// 1: character device in the record of a rail, 2: name) and the device's name. A name decides nothing about a
    /// function whose rail has a recorded character device.
    fn function_of(&self, hca: &Hca, rails: &[PodRail]) -> Option<(u8, String, DeviceAddress)> {
        let known = self.functions.get(&Identity::of(hca));
        let has_verbs = |it: &&PodRail| {
            let mut nodes = hca.char_devices.iter();
            nodes.any(|node| it.erdma_verbs.as_ref() == Some(&node.name))
        };
        let is_recorded = |address: &DeviceAddress| {
            let mut with_verbs = rails.iter().filter(|it| it.erdma_verbs.is_some());
            with_verbs.any(|it| it.devices.first() == Some(address))
        };
        let (kind, address) = if hca.node_guid.is_some() {
            (0, known?)
        } else if let Some(rail) = rails.iter().find(has_verbs) {
            (1, rail.devices.first()?)
        } else {
            (2, known.filter(|it| !is_recorded(it))?)
        };
        Some((kind, hca.name.clone(), address.clone()))
    }

    /// Pairs each unpaired RDMA device with its last known function, or else with the function in the record of a pod's
    /// rail. Then remembers the functions of `inventory`.
    fn pair(&mut self, inventory: &mut Inventory, rails: impl FnOnce() -> Vec<PodRails>) {
        let is_known =
            |hca: &Hca| hca.node_guid.is_some() && self.functions.contains_key(&Identity::of(hca));
        let rails: Vec<PodRail> = match inventory.unpaired.iter().all(is_known) {
            true => Vec::new(),
            false => rails().into_iter().flat_map(|pod| pod.rails).collect(),
        };
        for rail in &rails {
            let Some(address) = rail.devices.first() else {
                continue;
            };
            let guid = rail.node_guid.clone().map(Identity::Guid);
            let is_needed = |name: &String| rail.erdma_verbs.is_none() && is_erdma(None, name);
            let name = rail.rdma.clone().filter(is_needed).map(Identity::Name);
            for identity in guid.into_iter().chain(name) {
                let known = self.functions.entry(identity);
                known.or_insert_with(|| address.clone());
            }
        }
        let mut unpaired: Vec<_> = inventory
            .unpaired
            .iter()
            .filter_map(|hca| self.function_of(hca, &rails))
            .collect();
        unpaired.sort();
        for (_, name, address) in unpaired {
            inventory.pair(&name, &address);
        }
        for function in &inventory.functions {
            let own = function.hcas.first().filter(|hca| !hca.soft);
            let Some((hca, guid)) = own.and_then(|it| Some((it, it.node_guid.clone()?))) else {
                continue;
            };
            let address = &function.device.address;
            self.functions.retain(|_, known| known != address);
            let name = hca.is_erdma.then(|| Identity::Name(hca.name.clone()));
            let identities = name.into_iter().chain([Identity::Guid(guid)]);
            self.functions
                .extend(identities.map(|it| (it, address.clone())));
        }
    }
}

/// Reason why the hardware cannot be observed.
#[derive(Debug, thiserror::Error)]
pub enum HardwareError {
    /// sysfs cannot be read.
    #[error(transparent)]
    Unreadable(#[from] rdma_netns::ObserveError),
    /// The observing thread panicked.
    #[error("observing the hardware failed: {0}")]
    Stopped(#[from] JoinError),
}

impl Hardware {
    /// Returns an observer that reads `sysfs` and `dev`.
    pub fn new(sysfs: &Path, dev: &Path) -> Self {
        Self {
            kernel: Arc::new(Linux::with_roots(sysfs, dev)),
            sysfs: sysfs.to_owned(),
            dev: dev.to_owned(),
            procfs: PathBuf::from("/proc"),
            state_dir: None,
            memory: Arc::default(),
            driver: Arc::new(Semaphore::new(1)),
        }
    }

    /// Sets the mount point of procfs.
    pub fn with_procfs(self, procfs: &Path) -> Self {
        Self {
            procfs: procfs.to_owned(),
            ..self
        }
    }

    /// Sets the state directory of the records of pods' devices.
    pub fn with_records(self, state_dir: &Path) -> Self {
        Self {
            state_dir: Some(state_dir.to_owned()),
            ..self
        }
    }

    /// Returns the kernel interface, for callers that may block.
    pub fn kernel(&self) -> &Linux {
        &self.kernel
    }

    /// Observes all hardware now.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub fn observe(&self) -> Result<Inventory, HardwareError> {
        let mut inventory = self.kernel.inventory()?;
        let mut memory = self.pair(&mut inventory);
        memory.remember_storage(&mut inventory);
        let nics = inventory.functions.iter().map(|it| &it.device.address);
        let roots: (&Path, &Path) = (&self.sysfs, &self.procfs);
        let reader = &mut memory.gpudirect;
        let gpudirect = reader.read(roots, &inventory.accelerators, &nics.collect());
        drop(memory);
        inventory.gpudirect = gpudirect;
        inventory.rdma_cgroup = RdmaCgroup::observe(&self.sysfs, &self.procfs);
        Ok(inventory)
    }

    /// Observes which devices exist. Reads no ports, because a read of a port waits for the device's firmware.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub fn presence(&self) -> Result<Inventory, HardwareError> {
        let mut inventory = self.kernel.inventory_without_ports()?;
        drop(self.pair(&mut inventory));
        Ok(inventory)
    }

    fn pair(&self, inventory: &mut Inventory) -> MutexGuard<'_, Memory> {
        let rails = || {
            let state_dir = self.state_dir.as_deref();
            let boot_id = state_dir.and_then(|_| self.kernel.boot_id().ok());
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

    /// Runs [`presence`](Self::presence) on a separate thread.
    ///
    /// # Errors
    /// sysfs cannot be read, or the thread panicked.
    pub async fn presence_blocking(&self) -> Result<Inventory, HardwareError> {
        let hardware = self.clone();
        tokio::task::spawn_blocking(move || hardware.presence()).await?
    }

    /// Runs [`observe`](Self::observe) on a separate thread.
    ///
    /// # Errors
    /// sysfs cannot be read, or the thread panicked.
    pub async fn observe_blocking(&self) -> Result<Inventory, HardwareError> {
        let hardware = self.clone();
        tokio::task::spawn_blocking(move || hardware.observe()).await?
    }

    /// Returns the names that device plugins use for accelerators ([`rdma_netns::accelerator_names`]). Uses a separate
    /// thread, because the accelerators' driver may block.
    ///
    /// # Errors
    /// The thread panicked.
    pub async fn accelerator_names_blocking(
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

    /// Returns true if `/dev/infiniband` has the character device `name` with the numbers `major` and `minor`.
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
    use serde_json::{Value, json};

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

    /// Soft-RoCE on a bond of the host has been deleted, and in exclusive mode a pod has made an RDMA device with its
    /// name. Only eRDMA devices are known by their names.
    #[test]
    fn a_pods_device_with_a_deleted_devices_name_is_not_that_device() {
        for (driver_is_erdma, is_paired) in [(false, false), (true, true)] {
            let hca = json!({
                "name": "mlx5_bond_0", "node_guid": "966d:aeff:fe00:0001", "is_erdma": driver_is_erdma,
            });
            let function = |hcas: &[&Value]| json!({"address": "0000:3b:00.0", "hcas": hcas});
            let read = |value: Value| -> Inventory {
                serde_json::from_value(value).expect("an inventory")
            };
            let mut memory = Memory::default();
            memory.pair(
                &mut read(json!({"functions": [function(&[&hca])]})),
                Vec::new,
            );
            let mut inventory = read(json!({
                "functions": [function(&[])], "unpaired": [{"name": "mlx5_bond_0"}],
            }));
            memory.pair(&mut inventory, Vec::new);
            assert_eq!(inventory.unpaired.is_empty(), is_paired);
        }
    }

    /// In exclusive mode, a pod had an RDMA device of another driver, whose driver is now unbound. The pod has made an
    /// RDMA device with the recorded name.
    #[test]
    fn a_name_in_the_record_of_another_driver_is_no_identity() {
        let rail = PodRail {
            rdma: Some("mlx5_0".to_owned()),
            devices: vec!["0000:3b:00.0".to_owned().try_into().expect("an address")],
            ..PodRail::default()
        };
        let pod = PodRails {
            pod: "team/train-0".to_owned(),
            phase: "attached".to_owned(),
            rails: vec![rail],
        };
        let inventory = json!({
            "functions": [{"address": "0000:3b:00.0"}], "unpaired": [{"name": "mlx5_0"}],
        });
        let mut inventory: Inventory = serde_json::from_value(inventory).expect("an inventory");
        Memory::default().pair(&mut inventory, || vec![pod]);
        assert_eq!(inventory.unpaired.len(), 1);
    }
}
