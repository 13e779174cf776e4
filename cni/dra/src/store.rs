// SPDX-License-Identifier: Apache-2.0
//! The records of a node's claims: `<stateDir>/claims/<uid>.json`, written by the daemon, and by `rdma-cni` when a
//! pod has its network or gives it up. With each change of a record goes the claim's CDI specification, which never
//! says more than the record: it comes after it, and goes before it.

use crate::{
    cdi,
    record::{FORMAT, JoinedRail, Record, present},
};
use rdma_netns::Inventory;
use rdma_resources::{CharNode, FileError, file, grant::GrantedDevice};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// What a look at the claims found.
#[derive(Debug, Default)]
pub struct Check {
    /// Those whose NICs were renumbered, went or came back, as they are recorded now, and those whose specification was
    /// not as the record has it.
    pub changed: Vec<Record>,
    /// Those that could not be looked at, or not be written.
    pub failed: Vec<FileError>,
}

/// How a claim was given up.
#[derive(Debug)]
pub enum Removed {
    /// It was not prepared.
    Nothing,
    /// The record and the specification are removed.
    Record,
    /// The specification is removed, and the record, which could not be read, is put aside.
    Aside(Unreadable),
}

/// A record that could not be read.
#[derive(Debug)]
pub struct Unreadable {
    /// The file that it is in now.
    pub file: PathBuf,
    /// The reason.
    pub why: FileError,
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

    /// Where they are, from the first on.
    pub fn directory(&self) -> &Path {
        &self.root
    }

    /// All of them, and what cannot be read.
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

    /// The record of the claim `uid`; none: it is not prepared.
    ///
    /// # Errors
    /// It cannot be read, is of a later version, or is the record of another claim.
    pub fn read(&self, uid: &str) -> Result<Option<Record>, FileError> {
        let path = self.path(uid);
        match file::read_record::<Record>(&path, FORMAT)? {
            Some(record) if record.claim.uid != uid => {
                let words = format!("it is the record of claim {}", record.claim);
                Err(FileError::new("read", &path, io::Error::other(words)))
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
            record.follow(now);
        }
        self.put(&record)?;
        Ok(Some(record))
    }

    /// A pod of the claim `uid` has its network with `rails`, in the sandbox `container`: its NICs have the character
    /// devices of `now`. Whether there is such a claim.
    ///
    /// # Errors
    /// One of the files cannot be read or written.
    pub fn joined(
        &self,
        uid: &str,
        boot_id: &str,
        (container, rails): (&str, Vec<JoinedRail>),
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
        self.put(&record)?;
        Ok(true)
    }

    /// Looks again at what containers of the boot `boot_id` are given: numbers are those of the inventory that `look`
    /// gives, and a claim whose NICs are not all there gives nothing until they are. Where nothing is to change, nothing
    /// is locked, as whoever watches the directory would hear of that.
    ///
    /// # Errors
    /// There is no look, or no lock.
    pub fn check<E: From<FileError>>(
        &self,
        boot_id: &str,
        look: impl Fn() -> Result<Inventory, E>,
    ) -> Result<Check, E> {
        if self.uids().is_empty() {
            return Ok(Check::default());
        }
        let inventory = look()?;
        let (records, failed) = self.all();
        let due = records
            .into_iter()
            .filter_map(|it| followed(it, boot_id, &inventory));
        let due: Vec<String> = due.map(|it| it.claim.uid).collect();
        let mut check = Check {
            changed: vec![],
            failed,
        };
        if due.is_empty() {
            return Ok(check);
        }
        let _lock = self.lock()?;
        // nobody else's change comes between this look and the records
        let inventory = look()?;
        for uid in due {
            let followed = self.read(&uid).and_then(|record| {
                let followed = record.and_then(|it| followed(it, boot_id, &inventory));
                followed.iter().try_for_each(|it| self.put(it))?;
                Ok(followed)
            });
            match followed {
                Ok(changed) => check.changed.extend(changed),
                Err(error) => check.failed.push(error),
            }
        }
        Ok(check)
    }

    /// Those that the pod `uid` was prepared with, and those that cannot be read.
    pub fn of_pod(&self, uid: &str) -> (Vec<Record>, Vec<FileError>) {
        let (mut records, unreadable) = self.all();
        records.retain(|it| it.pods.contains(uid));
        (records, unreadable)
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
            record.rails.remove(container);
            if !record.is_begun() {
                // the next ADD looks for all of them
                record.absent.clear();
            }
            self.put(&record)
        };
        let left: Vec<Result<(), FileError>> = uids.iter().map(leave).collect();
        left.into_iter().collect()
    }

    /// Takes the record and the specification of the claim `uid` away. A record that cannot be read is put aside; its
    /// specification is looked for where it says, as far as it says so, and in `cdi_dir`.
    ///
    /// # Errors
    /// One of the files cannot be removed or renamed.
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
                let told = content.and_then(|it| Some(PathBuf::from(it["cdiDir"].as_str()?)));
                let told = told.filter(|it| it.is_absolute());
                let all = told.into_iter().chain([cdi_dir.to_owned()]);
                (all.collect(), Some(why))
            }
        };
        let specifications = cdi_dirs.iter().map(|it| cdi::path(it, uid));
        specifications.into_iter().try_for_each(remove_all)?;
        let path = self.path(uid);
        let removed = match unreadable {
            None => {
                remove_all(path)?;
                Removed::Record
            }
            Some(why) => {
                remove(&file::unfinished(&path))?;
                let file = path.with_extension(ASIDE);
                let renamed = fs::rename(&path, &file);
                renamed.map_err(|error| FileError::new("rename", &path, error))?;
                Removed::Aside(Unreadable { file, why })
            }
        };
        self.settle()?;
        Ok(removed)
    }

    /// The records that were put aside, since they could not be read.
    pub fn aside(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let mut aside: Vec<PathBuf> = paths
            .filter(|path| path.extension().is_some_and(|it| it == ASIDE))
            .collect();
        aside.sort();
        aside
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
        // first: wherever this ends, nobody is given a number that may be another device's by now
        if !record.is_final() || !cdi::gives(&specification, record) {
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

/// What the name of a record that was put aside ends with.
const ASIDE: &str = "corrupt";

/// `record` of the boot `boot_id` as `inventory` has its NICs, if something is to be written.
fn followed(record: Record, boot_id: &str, inventory: &Inventory) -> Option<Record> {
    if record.boot_id != boot_id || !record.is_begun() {
        return None;
    }
    let mut followed = record.clone();
    followed.follow(|nic| present(nic, inventory));
    (followed != record || !has_specification(&followed)).then_some(followed)
}

/// Whether the claim of `record` has a specification that gives what it is to give, or none where it is to have none.
fn has_specification(record: &Record) -> bool {
    let path = cdi::path(&record.cdi_dir, &record.claim.uid);
    match record.is_final() {
        true => cdi::gives(&path, record),
        false => fs::symlink_metadata(path).is_err(),
    }
}

/// Removes the file at `path`, and the unfinished file that a killed writer left beside it.
fn remove_all(path: PathBuf) -> Result<(), FileError> {
    remove(&path)?;
    remove(&file::unfinished(&path))
}

fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FileError::new("remove", path, error))
        }
        _ => Ok(()),
    }
}
