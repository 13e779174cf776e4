// SPDX-License-Identifier: Apache-2.0
//! Records on disk, and the locks around them.
//!
//! ```text
//! <stateDir>/lock                                             the node's lock
//! <stateDir>/attachments/<network>/<container>@<ifname>.json  an attachment's record
//! <stateDir>/attachments/<network>/<container>@<ifname>.lock  the attachment's lock
//! <stateDir>/gids/<RDMA device's index>@<address>.lock        the lock of an address's GIDs (`GidLocks`)
//! <stateDir>/rails/…                                          descriptions of rails, for programs in pods
//! ```
//! A CNI command takes the attachment's lock before the node's lock: [`Store::lock_node`] requires the
//! [`AttachmentLock`]. While a command holds the node's lock, it may try the lock of another attachment, but must not
//! wait for that lock. ADD waits for [`GidLocks`] after it has released the node's lock.
//!
//! Container ids and network names cannot contain `@` or `/`, so no two attachments share a file. A lock belongs to an
//! open file, so it ends with its process.

pub use crate::gid_locks::GidLocks;
use crate::{
    lock_file::LockFile,
    record::{Attachment, FORMAT, Key},
};
pub use cni_protocol::state_file::FileError as StoreError;
use cni_protocol::{
    lock::{Held, LockDeadline},
    room,
    state_file::{self, LARGEST, failed},
};
use conf_reader::one_line;
use rdma_netns::InterfaceName;
use serde::Deserialize;
use std::{
    collections::BTreeSet,
    fs::{self, TryLockError},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

/// The state directory.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
    lock_deadline: LockDeadline,
}

/// Lock of one attachment. Dropping it releases the lock.
#[derive(Debug)]
pub struct AttachmentLock(LockFile);

/// Lock of the node. Dropping it releases the lock.
#[derive(Debug)]
pub struct NodeLock {
    _held: Held,
}

/// State of an attachment's record file.
#[derive(Debug)]
pub enum Record {
    /// The record does not exist.
    None,
    /// The record can be read.
    Good(Box<Attachment>),
    /// The file cannot be read as the record. The text is the reason, in one line.
    Corrupt(String),
    /// A later version of this plugin wrote the record, in this format.
    Newer(u64),
}

/// Keys of attachments from the names of files, in order.
#[derive(Debug, Default)]
struct Files {
    /// The attachments that have a record.
    records: BTreeSet<Key>,
    /// The attachments that have an unfinished record, or that have a lock file and no record.
    killed: BTreeSet<Key>,
}

impl Store {
    /// Opens the state directory `root` for one CNI command, which starts now. The directory need not exist yet.
    pub fn new(root: &Path) -> Self {
        Self::within(root, LockDeadline::of_verb())
    }

    /// Opens the state directory for one CNI command. `lock_deadline` limits the time for which the command waits for
    /// locks.
    pub fn within(root: &Path, lock_deadline: LockDeadline) -> Self {
        Self {
            root: root.to_owned(),
            lock_deadline,
        }
    }

    /// Returns the time for which the CNI command may still wait for locks.
    pub fn lock_deadline(&self) -> LockDeadline {
        self.lock_deadline
    }

    /// Returns the path of the state directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Checks for STATUS that records can be written, and writes none.
    pub fn probe(&self) -> Result<(), StoreError> {
        room::check(&self.root).map_err(failed("write", &self.root))
    }

    /// Waits for the node's lock. The lock allows only one move at a time: two simultaneous moves could swap the
    /// numbers of their character devices. `_own` proves that the caller holds its attachment's lock, which it must
    /// take first.
    pub fn lock_node(&self, _own: &AttachmentLock) -> Result<NodeLock, StoreError> {
        self.lock_node_alone()
    }

    /// Waits for the node's lock. The caller must not wait for an attachment's lock while it holds the node's lock.
    pub fn lock_node_alone(&self) -> Result<NodeLock, StoreError> {
        let path = self.root.join("lock");
        let file = LockFile::open_first(&path)?;
        let held = self
            .lock_deadline
            .wait(file)
            .map_err(failed("lock", &path))?;
        Ok(NodeLock { _held: held })
    }

    /// Waits for the lock of one attachment.
    pub fn lock(&self, key: &Key) -> Result<AttachmentLock, StoreError> {
        LockFile::wait(self.path(key, "lock"), self.lock_deadline).map(AttachmentLock)
    }

    /// Takes the lock of one attachment. Returns `None` if the lock is held.
    pub fn try_lock(&self, key: &Key) -> Result<Option<AttachmentLock>, StoreError> {
        let lock = LockFile::attempt(self.path(key, "lock"))?;
        Ok(lock.map(AttachmentLock))
    }

    /// Returns true if a CNI command is running for the attachment. Makes no file. Takes a shared lock of the
    /// attachment for a moment, in which another command finds the lock held.
    pub fn is_at_work(&self, key: &Key) -> bool {
        let file = state_file::open(&self.path(key, "lock"));
        let lock = file.map(|file| file.try_lock_shared());
        matches!(lock, Ok(Err(TryLockError::WouldBlock)))
    }

    /// Writes a record. The record is complete and on disk when this function returns. Returns an error, and keeps the
    /// file, if no verb could read the new record because of its size.
    pub fn save(&self, attachment: &Attachment) -> Result<(), StoreError> {
        self.write(attachment, true)
    }

    /// Overwrites a record without a sync of its directory. After a power loss, the disk has the new or the old record.
    /// This is enough, because ADD's progress matters only until the next boot.
    pub fn update(&self, attachment: &Attachment) -> Result<(), StoreError> {
        self.write(attachment, false)
    }

    /// Overwrites a record like [`Store::update`]. Returns an error and keeps the file if the present record is
    /// corrupt or in a newer format, because the new record would lack its content.
    pub fn amend(&self, attachment: &Attachment) -> Result<(), StoreError> {
        let why = match self.record(&attachment.key) {
            Record::Corrupt(why) => why,
            Record::Newer(format) => {
                format!("its format is {format}, which a newer rdma-cni wrote")
            }
            _ => return self.update(attachment),
        };
        let path = self.path(&attachment.key, "json");
        Err(failed("update", &path)(io::Error::other(why)))
    }

    fn write(&self, attachment: &Attachment, at_once: bool) -> Result<(), StoreError> {
        let path = self.path(&attachment.key, "json");
        let text = serde_json::to_vec_pretty(attachment)
            .map_err(|error| failed("write", &path)(error.into()))?;
        let size = text.len() as u64;
        if size > LARGEST {
            let words = format!(
                "the record would have {size} bytes, and a state file has at most {LARGEST}: remove routes from the \
                 attachment's netdevs, because the record has all their routes, or attach fewer netdevs to a pod"
            );
            return Err(failed("write", &path)(io::Error::other(words)));
        }
        state_file::replace(&path, &text, at_once).map_err(failed("write", &path))
    }

    /// Reads the record of `key`.
    pub fn load(&self, key: &Key) -> Result<Record, StoreError> {
        let path = self.path(key, "json");
        match state_file::read(&path) {
            Ok(text) => Ok(decode(&text, key)),
            Err(error) if is_absent(error.kind()) => Ok(Record::None),
            Err(error) if state_file::is_odd(&error) => Ok(Record::Corrupt(error.to_string())),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    /// Returns the time since the record of `key` was written. Returns `None` if this time is unknown or the clock was
    /// set back.
    pub fn age(&self, key: &Key) -> Option<Duration> {
        let written = fs::metadata(self.path(key, "json")).and_then(|it| it.modified());
        written.ok()?.elapsed().ok()
    }

    /// Removes an attachment's record and its lock file.
    pub fn remove(&self, key: &Key, lock: AttachmentLock) -> Result<(), StoreError> {
        self.forget(key)?;
        lock.discard();
        Ok(())
    }

    /// Removes an attachment's record and its unfinished file, and keeps the lock. If an unfinished file cannot be
    /// removed, the next [`Store::sweep`] tries again.
    pub fn forget(&self, key: &Key) -> Result<(), StoreError> {
        let _ = fs::remove_file(self.path(key, UNFINISHED));
        let path = self.path(key, "json");
        match fs::remove_file(&path) {
            Err(error) if !is_absent(error.kind()) => Err(failed("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    /// Removes files that killed processes left, for one network or for all networks:
    ///
    /// - unfinished records that no process is writing
    /// - lock files that no process holds, and that have no record
    /// - [`GidLocks`] that no process holds
    ///
    /// If a file cannot be removed, the next CNI command tries again. Skips `own`, the caller's attachment: the caller
    /// holds its lock. Returns the attachments that have a record, like [`Store::keys`].
    pub fn sweep(&self, network: Option<&str>, own: Option<&Key>) -> Result<Vec<Key>, StoreError> {
        let Files { records, killed } = self.files(network)?;
        self.sweep_gids();
        for key in killed {
            if Some(&key) != own && self.tidy(&key) {
                log::info!("{key}: removed the files that a killed verb left");
            }
        }
        Ok(records.into_iter().collect())
    }

    /// Removes an attachment's unfinished record, and its lock file if there is no record. Returns false and removes
    /// nothing if the attachment's lock is held or cannot be opened.
    pub fn tidy(&self, key: &Key) -> bool {
        // stop if the lock is held: its holder may be writing the unfinished record
        let Ok(Some(lock)) = self.try_lock(key) else {
            return false;
        };
        let has_record = self.path(key, "json").exists();
        let _ = fs::remove_file(self.path(key, UNFINISHED));
        if !has_record {
            lock.discard();
        }
        true
    }

    /// Renames a corrupt record. The renamed record blocks no CNI command, and an administrator can still read it.
    pub fn set_aside(&self, key: &Key) -> Result<PathBuf, StoreError> {
        let path = self.path(key, "json");
        let aside = self.path(key, "corrupt");
        fs::rename(&path, &aside).map_err(failed("rename", &path))?;
        Ok(aside)
    }

    /// Returns the paths of corrupt records that were renamed.
    pub fn aside(&self) -> Result<Vec<PathBuf>, StoreError> {
        let mut found = vec![];
        for network in names(&self.root.join("attachments"))? {
            let directory = self.directory(&network);
            let aside = names(&directory)?.into_iter();
            let aside = aside.filter(|name| name.ends_with(".corrupt"));
            found.extend(aside.map(|name| directory.join(name)));
        }
        found.sort();
        Ok(found)
    }

    /// Returns the attachments that have a record, of one network or of all networks.
    pub fn keys(&self, network: Option<&str>) -> Result<Vec<Key>, StoreError> {
        Ok(self.files(network)?.records.into_iter().collect())
    }

    fn files(&self, network: Option<&str>) -> Result<Files, StoreError> {
        let networks = match network {
            Some(network) => [network.to_owned()].into(),
            None => names(&self.root.join("attachments"))?,
        };
        let mut files = Files::default();
        let mut locks = vec![];
        for network in networks {
            for name in names(&self.directory(&network))? {
                let of = |extension: &str| {
                    let name = name.strip_suffix(extension)?.strip_suffix('.')?;
                    key(&network, name)
                };
                files.records.extend(of("json"));
                files.killed.extend(of(UNFINISHED));
                locks.extend(of("lock"));
            }
        }
        let without_record = locks.into_iter().filter(|it| !files.records.contains(it));
        files.killed.extend(without_record);
        Ok(files)
    }

    fn directory(&self, network: &str) -> PathBuf {
        self.root.join("attachments").join(network)
    }

    fn path(&self, key: &Key, extension: &str) -> PathBuf {
        let Key {
            network,
            container,
            interface,
        } = key;
        self.directory(network)
            .join(format!("{container}@{interface}.{extension}"))
    }
}

impl AttachmentLock {
    /// Removes the lock file. The caller must check that no record needs the lock. Tries twice. If the file cannot be
    /// removed, the next [`Store::sweep`] tries again.
    pub fn discard(self) {
        self.0.discard();
    }
}

/// Returns the key that a file name without extension contains.
fn key(network: &str, name: &str) -> Option<Key> {
    let (container, interface) = name.split_once('@')?;
    Some(Key {
        network: network.to_owned(),
        container: container.to_owned(),
        interface: InterfaceName::try_from(interface).ok()?,
    })
}

/// The field that records of every version have.
#[derive(Deserialize)]
struct Head {
    format: u64,
}

/// Parses `text` as the record of `key`. A record of this version is parsed only once, for speed: each ADD reads the
/// records of all pods.
pub fn decode(text: &[u8], key: &Key) -> Record {
    // make the text safe: it can quote the file, which another program may have written
    let corrupt = |why: String| Record::Corrupt(one_line(&why).into_owned());
    match serde_json::from_slice::<Attachment>(text) {
        Ok(attachment) if attachment.format > FORMAT => Record::Newer(attachment.format.into()),
        Ok(attachment) if attachment.key != *key => {
            corrupt(format!("it is the record of {}", attachment.key))
        }
        Ok(attachment) => Record::Good(Box::new(attachment)),
        Err(error) => match serde_json::from_slice(text) {
            Ok(Head { format }) if format > FORMAT.into() => Record::Newer(format),
            _ => corrupt(error.to_string()),
        },
    }
}

/// Extension of a record that is being written.
const UNFINISHED: &str = "json.new";

pub(crate) fn is_absent(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

pub(crate) fn names(directory: &Path) -> Result<BTreeSet<String>, StoreError> {
    match state_file::names(directory) {
        Err(error) if is_absent(error.kind()) => Ok(BTreeSet::new()),
        names => names.map_err(failed("read", directory)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(container: &str, interface: &str) -> Key {
        Key {
            network: "net".into(),
            container: container.into(),
            interface: InterfaceName::try_from(interface).unwrap(),
        }
    }

    #[test]
    fn names_that_differ_share_no_file() {
        let store = Store::new(Path::new("/state"));
        let paths = [
            key("a", "b@c"),
            key("a-b", "c"),
            key("a", "b-c"),
            key("a", "b"),
        ]
        .map(|key| store.path(&key, "json"));
        let mut distinct = paths.to_vec();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), paths.len());
        for path in &paths {
            let file = path.file_name().unwrap().to_str().unwrap();
            assert_eq!(
                store.path(
                    &super::key("net", file.strip_suffix(".json").unwrap()).unwrap(),
                    "json"
                ),
                *path
            );
        }
    }

    #[test]
    fn a_lock_whose_file_was_removed_is_taken_anew() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::new(state.path());
        let key = key("a", "eth0");
        let first = store.lock(&key).unwrap();
        assert!(store.try_lock(&key).unwrap().is_none());
        let waiting = std::thread::spawn({
            let (store, key) = (store.clone(), key.clone());
            move || store.lock(&key).unwrap()
        });
        first.discard();
        let _second = waiting.join().unwrap();
        assert!(store.path(&key, "lock").exists());
        assert!(store.try_lock(&key).unwrap().is_none());
    }

    #[test]
    fn a_broken_record_differs_from_no_record() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::new(state.path());
        let key = key("a", "eth0");
        store.lock(&key).unwrap().discard();
        assert!(matches!(store.load(&key).unwrap(), Record::None));
        for text in ["", "{", "{}", "[]", "null", "{\"format\":1}"] {
            fs::write(store.path(&key, "json"), text).unwrap();
            assert!(
                matches!(store.load(&key).unwrap(), Record::Corrupt(_)),
                "{text:?}"
            );
        }
        assert_eq!(store.keys(None).unwrap(), [key]);
    }
    #[test]
    fn a_record_that_this_version_cannot_read_is_not_amended() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::new(state.path());
        let key = key("a", "eth0");
        let _lock = store.lock(&key).unwrap();
        let record = serde_json::json!({
            "format": FORMAT, "key": key, "phase": "attached", "bootId": "this", "pod": "team/train-0",
            "netns": "/run/netns/cni-1", "netnsId": {"device": 4, "inode": 77, "cookie": 9},
            "rdmaMode": "exclusive", "dad": "off", "acceptRa": false, "config": {}, "rails": [],
        });
        let attachment: Attachment = serde_json::from_value(record).unwrap();
        store.save(&attachment).unwrap();
        store.amend(&attachment).unwrap();
        let path = store.path(&key, "json");
        for text in [format!("{{\"format\":{}}}", FORMAT + 1), "{".to_owned()] {
            fs::write(&path, &text).unwrap();
            store.amend(&attachment).unwrap_err();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}
