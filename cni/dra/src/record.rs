// SPDX-License-Identifier: Apache-2.0
//! What claims were prepared with: `<stateDir>/claims/<uid>.json`, written by the daemon, and by `rdma-cni` when a
//! pod has its network or gives it up. With each change of a record goes the claim's CDI specification, which never
//! says more than the record: it comes after it, and goes before it.

use crate::{cdi, claim::ClaimName};
use rdma_resources::{CharNode, FileError, Sharing, file, grant::GrantedDevice};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// The format that this version writes, and the newest that it reads.
pub const FORMAT: u32 = 1;

/// What a claim was prepared with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// [`FORMAT`]
    pub format: u32,
    /// The driver's name.
    pub driver: String,
    /// The claim.
    pub claim: ClaimName,
    /// The boot in which the numbers of devices were looked up.
    pub boot_id: String,
    /// Where the runtime looks for CDI specifications.
    pub cdi_dir: PathBuf,
    /// Whether a pod's containers wait for its network: there is no specification before.
    pub awaits_network: bool,
    /// The sandboxes that have their network, by their container ids.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub networks: BTreeSet<String>,
    /// What was allocated, in the order of the allocation.
    pub devices: Vec<Prepared>,
    /// What containers get besides, by requests.
    pub requests: Vec<Request>,
}

/// One device of the allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prepared {
    /// The claim's request.
    pub request: String,
    /// The pool.
    pub pool: String,
    /// The device's name in it.
    pub device: String,
    /// Which of several allocations of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// Its resource.
    pub resource: String,
    /// Whether other pods may have its NICs.
    pub sharing: Sharing,
    /// Its NICs that containers get, with their character devices as they are now.
    pub nics: Vec<GrantedDevice>,
}

/// What a container gets for a request besides NICs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Its name.
    pub name: String,
    /// Variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// `rdma_cm`, where it works with the NICs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_manager: Option<CharNode>,
}

impl Record {
    /// Whether the numbers of its devices are those that containers are to have.
    pub fn is_final(&self) -> bool {
        !self.awaits_network || !self.networks.is_empty()
    }

    /// Takes the character devices that NICs have now, of the kinds that containers get; those of a NIC that
    /// `now` does not know stay.
    pub fn renumber(&mut self, now: impl Fn(&GrantedDevice) -> Option<Vec<CharNode>>) {
        for nic in self.devices.iter_mut().flat_map(|device| &mut device.nics) {
            let Some(mut present) = now(nic) else {
                continue;
            };
            present.retain(|it| nic.char_devices.iter().any(|had| had.kind() == it.kind()));
            if !present.is_empty() {
                nic.char_devices = present;
            }
        }
    }

    /// The first NIC whose numbers have to be looked up before it is prepared again in the boot `boot_id`, and that
    /// `now` does not know. Those that a pod's network corrects have time.
    pub fn missing(
        &self,
        boot_id: &str,
        now: impl Fn(&GrantedDevice) -> Option<Vec<CharNode>>,
    ) -> Option<&GrantedDevice> {
        let is_due = self.boot_id != boot_id && !self.awaits_network;
        let mut nics = self.devices.iter().flat_map(|device| &device.nics);
        nics.find(|nic| is_due && now(nic).is_none_or(|nodes| nodes.is_empty()))
    }

    /// It in another boot: no pod has a network.
    fn in_boot(&mut self, boot_id: &str) {
        if self.boot_id != boot_id {
            self.networks.clear();
            boot_id.clone_into(&mut self.boot_id);
        }
    }
}

/// The records of a node.
#[derive(Clone, Debug)]
pub struct Claims {
    root: PathBuf,
}

impl Claims {
    /// Those in the state directory.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            root: state_dir.join("claims"),
        }
    }

    /// The record of the claim `uid`; none: it is not prepared.
    ///
    /// # Errors
    /// It cannot be read, or is of a later version.
    pub fn read(&self, uid: &str) -> Result<Option<Record>, FileError> {
        let path = self.path(uid);
        let record: Option<Record> = file::read(&path)?;
        match record {
            Some(Record { format, .. }) if format > FORMAT => {
                let later = format!("its format is {format}, of a later version");
                Err(FileError::new("read", &path, io::Error::other(later)))
            }
            record => Ok(record),
        }
    }

    /// Records `record`, and makes its CDI specification if its numbers are final.
    ///
    /// # Errors
    /// One of the files cannot be written.
    pub fn prepare(&self, record: &Record) -> Result<(), FileError> {
        let _lock = self.lock()?;
        self.put(record)
    }

    /// The record of a claim that is prepared once more, in the boot `boot_id`. What a pod's network corrected
    /// stays; numbers that no network corrects are those of `now`. None: it is not prepared.
    ///
    /// # Errors
    /// One of the files cannot be read or written.
    pub fn again(
        &self,
        uid: &str,
        boot_id: &str,
        now: impl Fn(&GrantedDevice) -> Option<Vec<CharNode>>,
    ) -> Result<Option<Record>, FileError> {
        let _lock = self.lock()?;
        let Some(mut record) = self.read(uid)? else {
            return Ok(None);
        };
        record.in_boot(boot_id);
        if !record.awaits_network {
            record.renumber(now);
        }
        self.put(&record)?;
        Ok(Some(record))
    }

    /// A pod of the claim `uid` has its network, in the sandbox `container`: its NICs have the character devices
    /// of `now`. Whether there is such a claim.
    ///
    /// # Errors
    /// One of the files cannot be read or written.
    pub fn joined(
        &self,
        uid: &str,
        boot_id: &str,
        container: &str,
        now: impl Fn(&GrantedDevice) -> Option<Vec<CharNode>>,
    ) -> Result<bool, FileError> {
        let _lock = self.lock()?;
        let Some(mut record) = self.read(uid)? else {
            return Ok(false);
        };
        record.in_boot(boot_id);
        record.renumber(now);
        record.networks.insert(container.to_owned());
        self.put(&record)?;
        Ok(true)
    }

    /// The sandbox `container` has its network no more. Goes on after an error, and tells the first.
    ///
    /// # Errors
    /// One of the files cannot be read or written.
    pub fn left(&self, container: &str) -> Result<(), FileError> {
        let mut uids = self.uids();
        uids.retain(|uid| {
            let has_it = |record: Option<Record>| {
                record.is_some_and(|record| record.networks.contains(container))
            };
            // one that cannot be read is told below
            self.read(uid).map_or(true, has_it)
        });
        if uids.is_empty() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let leave = |uid: &String| {
            let Some(mut record) = self.read(uid)? else {
                return Ok(());
            };
            record.networks.remove(container);
            self.put(&record)
        };
        let left: Vec<Result<(), FileError>> = uids.iter().map(leave).collect();
        left.into_iter().collect()
    }

    /// Takes the record and the specification of the claim `uid` away. Whether there was a record.
    ///
    /// # Errors
    /// One of the files cannot be read or removed.
    pub fn remove(&self, uid: &str) -> Result<bool, FileError> {
        if !self.root.exists() {
            return Ok(false);
        }
        let _lock = self.lock()?;
        let Some(record) = self.read(uid)? else {
            return Ok(false);
        };
        for path in [cdi::path(&record.cdi_dir, uid), self.path(uid)] {
            remove(&path)?;
            // a writer that was killed leaves it, and nobody writes this file again
            remove(&file::unfinished(&path))?;
        }
        self.settle()?;
        Ok(true)
    }

    /// The claims that there are.
    fn uids(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
            .collect()
    }

    fn put(&self, record: &Record) -> Result<(), FileError> {
        let uid = &record.claim.uid;
        let specification = cdi::path(&record.cdi_dir, uid);
        if !record.is_final() {
            remove(&specification)?;
        }
        if file::replace(&self.path(uid), record, 0o600)? {
            self.settle()?;
        }
        if record.is_final() {
            file::replace(&specification, &cdi::specification(record), 0o644)?;
        }
        Ok(())
    }

    /// Names are on the disk as well as what is in the files.
    fn settle(&self) -> Result<(), FileError> {
        let synced = File::open(&self.root).and_then(|it| it.sync_all());
        synced.map_err(|error| FileError::new("write", &self.root, error))
    }

    fn lock(&self) -> Result<impl Drop, FileError> {
        file::lock(&self.root.join("lock"))
    }

    fn path(&self, uid: &str) -> PathBuf {
        self.root.join(format!("{uid}.json"))
    }
}

fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FileError::new("remove", path, error))
        }
        _ => Ok(()),
    }
}
