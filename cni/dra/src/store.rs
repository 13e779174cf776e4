// SPDX-License-Identifier: Apache-2.0
//! Records of a node's claims: `<stateDir>/claims/<uid>.json`. The daemon writes and checks a record, and `rdma-cni`
//! updates it when it attaches or detaches a pod's network.
//!
//! Each change also updates the claim's CDI specification: the specification is written after the record, and removed
//! before the record. It therefore never contains a device that is not in the record.

use crate::{
    cdi, metadata,
    record::{FORMAT, JoinedRail, Record, present},
};
use rdma_netns::Inventory;
use rdma_resources::{CharNode, FileError, container::LibraryFile, file, grant::GrantedDevice};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// Result of checking the claims.
#[derive(Debug, Default)]
pub struct Check {
    /// Records of claims whose NICs got other character devices, disappeared or came back, or whose CDI specification
    /// was outdated.
    pub changed: Vec<Record>,
    /// Errors of claims that could not be read or written.
    pub failed: Vec<FileError>,
}

/// Result of unpreparing a claim.
#[derive(Debug)]
pub enum Removed {
    /// The claim was not prepared.
    Nothing,
    /// The record, the CDI specification and the mounted files were removed.
    Record,
    /// The CDI specification and the mounted files were removed. The record could not be read, and was renamed.
    Aside(Unreadable),
}

/// A record that could not be read.
#[derive(Debug)]
pub struct Unreadable {
    /// New path of the renamed file.
    pub file: PathBuf,
    /// Reason why the record could not be read.
    pub why: FileError,
}

/// Records of a node's claims.
#[derive(Clone, Debug)]
pub struct Claims {
    root: PathBuf,
}

impl Claims {
    /// Returns the records in the state directory `state_dir`.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            root: state_dir.join("claims"),
        }
    }

    /// Returns the directory of the records, which may not exist yet.
    pub fn directory(&self) -> &Path {
        &self.root
    }

    /// Reads all records. Also returns the errors of records that cannot be read.
    pub fn all(&self) -> (Vec<Record>, Vec<FileError>) {
        let mut uids = self.uids();
        uids.sort();
        let (mut records, mut unreadable) = (vec![], vec![]);
        for uid in uids {
            match self.read(&uid) {
                Ok(record) => records.extend(record),
                Err(error) => unreadable.push(error),
            }
        }
        (records, unreadable)
    }

    /// Reads the record of the claim `uid`. Returns `None` if the claim is not prepared.
    ///
    /// # Errors
    /// The record cannot be read, is of a later version, or belongs to another claim.
    pub fn read(&self, uid: &str) -> Result<Option<Record>, FileError> {
        let path = self.path(uid);
        match file::read_record::<Record>(&path, FORMAT)? {
            Some(record) if record.claim.uid != uid => {
                let claim = &record.claim;
                let words = format!("it is the record of claim {claim} with UID {}", claim.uid);
                Err(FileError::new("read", &path, io::Error::other(words)))
            }
            record => Ok(record),
        }
    }

    /// Writes `record`. Also writes the claim's CDI specification if the devices' numbers are final. Returns the record
    /// of the claim. If another call has prepared the claim meanwhile, keeps that call's record, which may contain
    /// networks of pods, and only adds the pods of `record`: kubelet prepares a claim once for each of its pods, also
    /// at the same time.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn prepare(&self, record: Record) -> Result<Record, FileError> {
        let _lock = self.lock()?;
        let record = match self.read(&record.claim.uid)? {
            None => record,
            Some(mut present) => {
                present.pods.extend(record.pods);
                present
            }
        };
        self.put(&record)?;
        Ok(record)
    }

    /// Updates a claim that the daemon prepares again in the boot `boot_id`, and returns its record. `now` returns a
    /// NIC's present character devices. Keeps the numbers if ADD will update them, because a pod's containers wait for
    /// its network. Returns `None` if the claim is not prepared.
    ///
    /// # Errors
    /// A file cannot be read or written.
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
        record.generation += 1;
        if !record.awaits_network {
            record.follow(now);
        }
        self.put(&record)?;
        Ok(Some(record))
    }

    /// Records that the network of a pod of the claim `uid` is attached. Stores the pod's `rails`, its sandbox
    /// `container`, and its library `files`. `now` returns a NIC's present character devices. Returns true if the claim
    /// is prepared.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn joined(
        &self,
        uid: &str,
        boot_id: &str,
        (container, rails, files): (&str, Vec<JoinedRail>, BTreeMap<String, String>),
        now: impl Fn(&GrantedDevice) -> Option<Vec<CharNode>>,
    ) -> Result<bool, FileError> {
        let _lock = self.lock()?;
        let Some(mut record) = self.read(uid)? else {
            return Ok(false);
        };
        record.in_boot(boot_id);
        record.follow(now);
        record.networks.insert(container.to_owned());
        record.rails.insert(container.to_owned(), rails);
        record.files.insert(container.to_owned(), files);
        record.generation += 1;
        self.put(&record)?;
        Ok(true)
    }

    /// Updates the records and CDI specifications of claims that were prepared in the boot `boot_id`, and whose
    /// containers may have devices. `observe` returns the inventory. A claim with absent NICs has no specification
    /// until the NICs are back. Takes no lock if nothing changes, because locking is an event for watchers of the
    /// directory.
    ///
    /// # Errors
    /// `observe` failed, or the directory cannot be locked.
    pub fn check<E: From<FileError>>(
        &self,
        boot_id: &str,
        observe: impl Fn() -> Result<Inventory, E>,
    ) -> Result<Check, E> {
        if self.uids().is_empty() {
            return Ok(Check::default());
        }
        let inventory = observe()?;
        let (records, failed) = self.all();
        let due = records
            .into_iter()
            .filter_map(|it| followed(it, boot_id, |nic| present(nic, &inventory)));
        let due: Vec<String> = due.map(|it| it.claim.uid).collect();
        let mut check = Check {
            changed: vec![],
            failed,
        };
        if due.is_empty() {
            return Ok(check);
        }
        let _lock = self.lock()?;
        // observe while the directory is locked, so that the records match this observation
        let inventory = observe()?;
        for uid in due {
            let now = |nic: &GrantedDevice| present(nic, &inventory);
            match self.update(&uid, |it| followed(it, boot_id, now)) {
                Ok(changed) => check.changed.extend(changed),
                Err(error) => check.failed.push(error),
            }
        }
        Ok(check)
    }

    /// Updates the records and CDI specifications of claims like [`Self::check`], but only of claims with a NIC that
    /// has just moved. `moved` returns the present character devices of such a NIC, and `None` for another NIC. Returns
    /// the changed records. Continues after an error, and returns the first error.
    ///
    /// # Errors
    /// A file of such a claim cannot be read or written.
    pub fn follow(
        &self,
        boot_id: &str,
        moved: impl Fn(&GrantedDevice) -> Option<Vec<CharNode>>,
    ) -> Result<Vec<Record>, FileError> {
        let followed = |record: Record| {
            if !record.nics().any(|nic| moved(nic).is_some()) {
                return None;
            }
            let absent = record.absent.clone();
            let recorded = |nic: &GrantedDevice| {
                let is_present = !absent.contains(&nic.address);
                is_present.then(|| nic.char_devices.clone())
            };
            followed(record, boot_id, |nic| moved(nic).or_else(|| recorded(nic)))
        };
        let due: Vec<Record> = self.all().0.into_iter().filter_map(followed).collect();
        if due.is_empty() {
            return Ok(vec![]);
        }
        let _lock = self.lock()?;
        let due = due.iter();
        let changed: Vec<_> = due.map(|it| self.update(&it.claim.uid, followed)).collect();
        let changed: Result<Vec<_>, _> = changed.into_iter().collect();
        Ok(changed?.into_iter().flatten().collect())
    }

    /// Returns the records of the claims that the daemon prepared for the pod with the UID `uid`. Also returns the
    /// errors of records that cannot be read.
    pub fn of_pod(&self, uid: &str) -> (Vec<Record>, Vec<FileError>) {
        let (mut records, unreadable) = self.all();
        records.retain(|it| it.pods.contains(uid));
        (records, unreadable)
    }

    /// Records that the network of the sandbox `container` is detached. Continues after an error, and returns the first
    /// error.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn left(&self, container: &str) -> Result<(), FileError> {
        let mut uids = self.uids();
        uids.retain(|uid| {
            let has_it = |record: Option<Record>| {
                record.is_some_and(|record| record.networks.contains(container))
            };
            // keep the UID of an unreadable record: this function returns its error below
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
            record.rails.remove(container);
            record.files.remove(container);
            record.generation += 1;
            if !record.is_begun() {
                // the next ADD checks all NICs again
                record.absent.clear();
            }
            self.put(&record)
        };
        let left: Vec<Result<(), FileError>> = uids.iter().map(leave).collect();
        left.into_iter().collect()
    }

    /// Removes the record, the CDI specification and the mounted files of the claim `uid`. If the record cannot be
    /// read, renames it. The specification of such a record is removed from `cdi_dir`, and from the recorded directory
    /// if this can still be determined.
    ///
    /// # Errors
    /// A file cannot be removed or renamed.
    pub fn remove(&self, uid: &str, cdi_dir: &Path) -> Result<Removed, FileError> {
        if !self.root.exists() {
            return Ok(Removed::Nothing);
        }
        let _lock = self.lock()?;
        let (cdi_dirs, unreadable) = match self.read(uid) {
            Ok(None) => return Ok(Removed::Nothing),
            Ok(Some(record)) => (BTreeSet::from([record.cdi_dir]), None),
            Err(why) => {
                let content = file::read::<Value>(&self.path(uid)).ok().flatten();
                let recorded = content.and_then(|it| Some(PathBuf::from(it["cdiDir"].as_str()?)));
                let recorded = recorded.filter(|it| it.is_absolute());
                let all = recorded.into_iter().chain([cdi_dir.to_owned()]);
                (all.collect(), Some(why))
            }
        };
        let specifications = cdi_dirs.iter().map(|it| cdi::path(it, uid));
        specifications.into_iter().try_for_each(remove_all)?;
        let directory = self.files(uid);
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(FileError::new("remove", &directory, error));
            }
            _ => {}
        }
        let path = self.path(uid);
        let removed = match unreadable {
            None => {
                remove_all(path)?;
                Removed::Record
            }
            Some(why) => {
                file::remove(&file::unfinished(&path))?;
                let file = path.with_extension(ASIDE);
                let renamed = fs::rename(&path, &file);
                renamed.map_err(|error| FileError::new("rename", &path, error))?;
                Removed::Aside(Unreadable { file, why })
            }
        };
        self.settle()?;
        Ok(removed)
    }

    /// Returns the paths of records that could not be read and were renamed.
    pub fn aside(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let mut aside: Vec<PathBuf> = paths
            .filter(|path| path.extension().is_some_and(|it| it == ASIDE))
            .collect();
        aside.sort();
        aside
    }

    fn uids(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
            .collect()
    }

    /// Writes the record of the claim `uid` as `followed` returns it. Returns the changed record. `None`: no file needs
    /// a change, or the claim is not prepared.
    fn update(
        &self,
        uid: &str,
        followed: impl FnOnce(Record) -> Option<Record>,
    ) -> Result<Option<Record>, FileError> {
        let record = self.read(uid)?.and_then(followed);
        record.iter().try_for_each(|it| self.put(it))?;
        Ok(record)
    }

    fn put(&self, record: &Record) -> Result<(), FileError> {
        let uid = &record.claim.uid;
        let specification = cdi::path(&record.cdi_dir, uid);
        // remove the specification first: after a crash, a specification must not have a number that now belongs to
        // another device
        if !record.is_final() || !cdi::gives(&specification, record) {
            file::remove(&specification)?;
        }
        if file::replace(&self.path(uid), record, 0o600)? {
            self.settle()?;
        }
        let directory = self.files(uid);
        let files = record.files_of_one_pod();
        for name in LibraryFile::ALL.map(LibraryFile::name) {
            if let Some(text) = files.and_then(|it| it.get(name)) {
                let path = cdi::libraries(&directory).join(name);
                file::replace_text(&path, text.as_bytes(), 0o644)?;
            }
        }
        if record.is_final() {
            for request in &record.requests {
                let Some(names) = &request.metadata else {
                    continue;
                };
                let text = metadata::text(record, request, names);
                let path = cdi::metadata(&directory, request);
                file::replace_text(&path, text.as_bytes(), 0o644)?;
            }
            let content = cdi::specification(record, &directory);
            file::replace(&specification, &content, 0o644)?;
        }
        Ok(())
    }

    /// Writes the directory to the disk (`fsync`), with the names of its files.
    fn settle(&self) -> Result<(), FileError> {
        let synced = File::open(&self.root).and_then(|it| it.sync_all());
        synced.map_err(|error| FileError::new("write", &self.root, error))
    }

    fn lock(&self) -> Result<impl Drop, FileError> {
        file::lock(&self.root.join("lock"))
    }

    /// Returns the directory of the files that containers of the claim mount.
    fn files(&self, uid: &str) -> PathBuf {
        self.root.join(uid)
    }

    fn path(&self, uid: &str) -> PathBuf {
        self.root.join(format!("{uid}.json"))
    }
}

/// Suffix of the file name of a record that could not be read.
const ASIDE: &str = "corrupt";

/// Returns `record` with the present character devices of its NICs, which `now` returns. Returns `None` if no file
/// needs a change in the boot `boot_id`.
fn followed(
    record: Record,
    boot_id: &str,
    now: impl Fn(&GrantedDevice) -> Option<Vec<CharNode>>,
) -> Option<Record> {
    if record.boot_id != boot_id || !record.is_begun() {
        return None;
    }
    let mut followed = record.clone();
    followed.follow(now);
    (followed != record || !has_specification(&followed)).then_some(followed)
}

/// Returns true if the CDI specification of `record` is up to date. While the numbers are not final, no specification
/// must exist.
fn has_specification(record: &Record) -> bool {
    let path = cdi::path(&record.cdi_dir, &record.claim.uid);
    match record.is_final() {
        true => cdi::gives(&path, record),
        false => fs::symlink_metadata(path).is_err(),
    }
}

/// Removes the file at `path`, and the temporary file for it that a killed process may have left.
fn remove_all(path: PathBuf) -> Result<(), FileError> {
    file::remove(&path)?;
    file::remove(&file::unfinished(&path)).map(drop)
}
