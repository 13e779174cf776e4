// SPDX-License-Identifier: Apache-2.0
//! Record of this project's changes on the node: `<stateDir>/install.json`. Each process records a binary or an entry
//! before the write, and deletes it from the record only after its removal from the node. The record of a killed
//! process therefore lists all its changes.

use super::file::{self, Stamp, hash};
use cni_protocol::{
    lock::{self, Held},
    state_file::{self, failed},
};
use conflist::{Directory, Entry, List, Placed, placement, single::SUFFIX};
use rdma_resources::{
    ContainerLimits, FileError, Hook,
    file::{parse_record, read_record},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Format of the record. A reader refuses a record with a higher format.
const FORMAT: u32 = 2;

/// Default plugin directory of container runtimes.
pub const BIN_DIR: &str = "/opt/cni/bin";

const LOCK: &str = "install.lock";

/// Changes that this project made on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    format: u32,
    /// Directory of the installed plugins; `None`: [`BIN_DIR`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bin_dir: Option<PathBuf>,
    /// Further plugin directories of the runtime, in the runtime's search order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_bin_dirs: Vec<PathBuf>,
    /// Directory of the lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conf_dir: Option<PathBuf>,
    /// Network that the last installation selected by name. `None`: the runtime uses its first network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// True if the last installation was for CRI-O, which calls the plugins of the list in libcni's cache at DEL. False
    /// for podman, too: each of its containers that needs `rdma-cni` has a record of `rdma-cni`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub deletes_by_cache: bool,
    /// Installed plugins by name.
    #[serde(default)]
    pub binaries: BTreeMap<String, Binary>,
    /// Files to which this project added `rdma-cni` or a detection entry, by file name.
    #[serde(default)]
    pub lists: BTreeMap<String, Placing>,
    /// True once `uninstall` begins to remove `rdma-cni` from the lists. The daemon then does not add the plugin again.
    /// Only `install` does.
    #[serde(default, skip_serializing_if = "is_false")]
    pub withdrawn: bool,
}

/// Returns the OCI hook that runs the installed `rdma-cni` to set a container's limits. Returns `None` if `limits` has
/// no limit.
///
/// # Errors
/// `rdma-cni` is not installed, or the record below `state_dir` cannot be read.
pub fn hook(state_dir: &Path, limits: ContainerLimits) -> Result<Option<Hook>, String> {
    if limits.is_empty() {
        return Ok(None);
    }
    match Record::read(state_dir) {
        Ok(Some(record)) => Ok(Some(Hook::new(record.bin_dir(), limits, state_dir))),
        Ok(None) => Err(format!(
            "rdma-cni, which sets the limits of containers, is not installed according to {state_dir:?}; run \
             rdma-device-plugin install, or remove memlock and limits from the configuration"
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// Condition for `skip_serializing_if`.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands it a reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}

/// Converts the part of the record that `doctor` uses. An unrecorded path has its default.
impl From<Record> for doctor::Paths {
    fn from(record: Record) -> Self {
        let default = Self::default();
        Self {
            bin_dirs: record.bin_dirs(),
            conf_dir: record.conf_dir.unwrap_or(default.conf_dir),
            network: record.network,
            ..default
        }
    }
}

/// An installed binary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binary {
    /// SHA-256 of the binary's content, hexadecimal.
    pub sha256: String,
    /// SHA-256 of the binary that this project installed before. If a process was killed before it wrote the new
    /// binary, the earlier binary is still in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// True if the binary replaced another program's binary. The directory `replaced` then contains the replaced
    /// binary.
    #[serde(default)]
    pub replaced: bool,
}

impl Binary {
    /// Returns true if this project installed the content with this hash last, or before that.
    pub fn is_ours(&self, sha256: &str) -> bool {
        self.sha256 == sha256 || self.before.as_deref() == Some(sha256)
    }
}

/// Record of a file to which this project added `rdma-cni` or a detection entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placing {
    /// Stamp of the file without `rdma-cni`. `None`: there was no file, or its stamp is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Stamp>,
    /// Entries of `rdma-cni` that this project wrote to the file, the newest first: the last two of a list and those
    /// that the list had before its last change, or the one of a file in a network's own directory. If a process was
    /// killed before it wrote a list, or could not write the list, the list still has an earlier entry.
    #[serde(default)]
    pub entries: Vec<Map<String, Value>>,
    /// True if this project made the network's own directory that contains this file.
    #[serde(default, skip_serializing_if = "is_false")]
    pub made_directory: bool,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            format: FORMAT,
            bin_dir: None,
            further_bin_dirs: Vec::new(),
            conf_dir: None,
            network: None,
            deletes_by_cache: false,
            binaries: BTreeMap::new(),
            lists: BTreeMap::new(),
            withdrawn: false,
        }
    }
}

impl Record {
    /// Reads the record below `state_dir`. Returns `None` if nothing was installed.
    ///
    /// # Errors
    /// The record cannot be read.
    pub fn read(state_dir: &Path) -> Result<Option<Self>, FileError> {
        read_record(&path(state_dir), FORMAT)
    }

    /// Parses `text`, the content of the file `path`.
    ///
    /// # Errors
    /// The text is no record, or is a record of a later version.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, FileError> {
        parse_record(text, path, FORMAT)
    }

    /// Removes the temporary copies of the lists in `conf_dir`, which a killed process left. No runtime reads such
    /// copies. The caller holds the record's lock.
    ///
    /// # Errors
    /// A copy cannot be removed.
    pub(super) fn clear_copies(&self, conf_dir: &Path) -> Result<(), FileError> {
        let mut lists = self.lists.keys();
        lists.try_for_each(|list| file::remove(&file::temporary(&conf_dir.join(list))))
    }

    /// Returns the directory of the installed plugins.
    pub fn bin_dir(&self) -> &Path {
        self.bin_dir.as_deref().unwrap_or(Path::new(BIN_DIR))
    }

    /// Returns the runtime's plugin directories in the runtime's search order.
    pub fn bin_dirs(&self) -> Vec<PathBuf> {
        let first = [self.bin_dir().to_owned()].into_iter();
        first.chain(self.further_bin_dirs.iter().cloned()).collect()
    }

    /// Writes the record if the file's content differs.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn write(&self, state_dir: &Path) -> Result<(), FileError> {
        let path = path(state_dir);
        let write = || {
            let mut text = serde_json::to_vec_pretty(self)?;
            text.push(b'\n');
            if state_file::read(&path).is_ok_and(|present| present == text) {
                return Ok(());
            }
            fs::create_dir_all(state_dir)?;
            state_file::replace(&path, &text, true)
        };
        write().map_err(failed("write", &path))
    }

    /// Returns true if the record on disk equals this record. Ignores the stamps of lists.
    pub(crate) fn is_known(&self, state_dir: &Path) -> bool {
        let present = Self::read(state_dir).ok().flatten();
        present.is_some_and(|it| it.without_stamps() == self.without_stamps())
    }

    fn without_stamps(&self) -> Self {
        let mut record = self.clone();
        for placing in record.lists.values_mut() {
            placing.before = None;
        }
        record
    }

    /// Removes the record. The caller has undone all recorded changes before.
    ///
    /// # Errors
    /// The record cannot be removed.
    pub fn remove(state_dir: &Path) -> Result<(), FileError> {
        file::remove(&path(state_dir))
    }

    /// Returns the recorded files, with this project's entries in the lists of `directory`. In a network program's
    /// list, an entry of `rdma-cni` that is not recorded belongs to another program. Leaves out a list that has only
    /// such entries.
    pub fn placed(&self, directory: &Directory) -> Placed {
        let placed = |(file, placing): (&String, &Placing)| {
            let text = directory.file(file).and_then(|it| it.text.as_deref().ok());
            let list = text.and_then(|text| List::parse(text).ok());
            let mut entries: Vec<_> = list.iter().flat_map(List::all_own).collect();
            let has_none = entries.is_empty();
            let has_our_name = file.ends_with(SUFFIX) || placement::is_ours(file);
            entries.retain(|it| has_our_name || placing.entries.contains(it));
            (has_none || !entries.is_empty()).then(|| (file.clone(), entries))
        };
        self.lists.iter().filter_map(placed).collect()
    }

    /// Records that `entry` is added to `file`. `present` are the entries of `rdma-cni` that the file has now, and
    /// keeps if the change fails. `before` is the stamp of the file without the plugin, if known.
    pub(crate) fn put(
        &mut self,
        file: &str,
        entry: &Entry,
        present: &[Map<String, Value>],
        before: Option<Stamp>,
    ) {
        let placing = self.lists.entry(file.to_owned()).or_default();
        let new = entry.fields();
        placing.entries.retain(|entry| entry != new);
        placing.entries.insert(0, new.clone());
        let earlier = placing.entries.split_off(placing.entries.len().min(2));
        let in_file = earlier.into_iter().filter(|it| present.contains(it));
        placing.entries.extend(in_file);
        if before.is_some() {
            placing.before = before;
        }
    }

    /// Records that `entry` is written to `file` of a network's own directory. `entry` is `None` if the file gets only
    /// a detection entry, which shows whether the runtime reads the directory. `is_there` is true if the directory
    /// exists already.
    pub(crate) fn put_in_directory(&mut self, file: &str, entry: Option<&Entry>, is_there: bool) {
        let placing = self.lists.entry(file.to_owned()).or_default();
        placing.entries = entry.map(|it| it.fields().clone()).into_iter().collect();
        placing.made_directory |= !is_there;
    }

    /// Returns the files that have an entry of `rdma-cni`. Leaves out files that have only a detection entry.
    pub(crate) fn lists_with_entry(&self) -> impl Iterator<Item = &String> {
        let with_entry = |(file, placing): &(&String, &Placing)| {
            !placement::is_ours(file) || !placing.entries.is_empty()
        };
        let lists = self.lists.iter().filter(with_entry);
        lists.map(|(file, _)| file)
    }

    /// Returns the networks' own directories that have a file of this project.
    pub(crate) fn directories(&self) -> impl Iterator<Item = &str> {
        let files = self.lists.keys().filter(|file| placement::is_ours(file));
        files.filter_map(|file| Some(file.rsplit_once('/')?.0))
    }

    /// Returns the modification time that `file` had before `rdma-cni` was added. Returns `None` if `text` is not the
    /// recorded text without `rdma-cni`.
    pub(crate) fn is_back(&self, file: &str, text: &str) -> Option<SystemTime> {
        let before = self.lists.get(file)?.before.as_ref()?;
        (before.sha256 == hash(text.as_bytes())).then(|| before.modified())
    }
}

/// Locks the record. Waits while another process has the lock. Then removes a temporary record that a killed process or
/// a power loss left. Dropping the returned value releases the lock.
///
/// # Errors
/// The lock file cannot be made or locked, or the temporary record cannot be removed.
pub fn lock(state_dir: &Path) -> Result<Held, FileError> {
    let path = state_dir.join(LOCK);
    let open = || match state_file::open(&path) {
        // never open an existing lock file for writing: closing it would cause an event, and the reconciler would start
        // another turn that locks again
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(state_dir)?;
            state_file::make(&path, 0o600)
        }
        file => file,
    };
    let held = lock::hold(&path, open).map_err(failed("lock", &path))?;
    file::remove(&state_dir.join("install.json.new"))?;
    Ok(held)
}

/// Removes the lock file, and then the state directory if it is empty and removable. In a pod the state directory is a
/// mount, and remains.
///
/// # Errors
/// A file cannot be removed, or the change cannot be synced to the disk.
pub fn unlock_for_good(lock: Held, state_dir: &Path) -> Result<(), FileError> {
    file::remove(&state_dir.join(LOCK))?;
    let changed = match fs::remove_dir(state_dir) {
        Ok(()) => state_dir.parent().unwrap_or(Path::new("/")),
        Err(error) if stays(&error) => state_dir,
        Err(error) => return Err(failed("remove", state_dir)(error)),
    };
    file::sync(changed).map_err(failed("sync", changed))?;
    drop(lock);
    Ok(())
}

/// Returns true if the error means that the directory must remain: it contains other files, it is a mount point, or its
/// parent is read-only.
fn stays(error: &io::Error) -> bool {
    use io::ErrorKind::{DirectoryNotEmpty, PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    matches!(
        error.kind(),
        DirectoryNotEmpty | PermissionDenied | ReadOnlyFilesystem | ResourceBusy
    )
}

/// Returns the path of the record.
pub fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("install.json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use doctor::Paths;

    #[test]
    fn doctor_uses_the_recorded_paths_and_otherwise_the_defaults() {
        assert_eq!(Paths::from(Record::default()), Paths::default());
        let record = Record {
            conf_dir: Some("/net.d".into()),
            bin_dir: Some("/one".into()),
            further_bin_dirs: vec!["/two".into()],
            network: Some("rails".to_owned()),
            ..Record::default()
        };
        let expected = Paths {
            conf_dir: "/net.d".into(),
            bin_dirs: vec!["/one".into(), "/two".into()],
            network: Some("rails".to_owned()),
            ..Paths::default()
        };
        assert_eq!(Paths::from(record), expected);
    }

    #[test]
    fn dropping_the_lock_releases_it_while_a_forked_child_has_the_file() {
        let state = tempfile::tempdir().expect("a directory");
        let turn = lock(state.path()).expect("free");
        // a second descriptor of the open file, like the one that a forked child has until `exec`
        let _forked = turn.try_clone().expect("one more descriptor");
        drop(turn);
        let next = fs::File::open(state.path().join(LOCK)).expect("the file");
        next.try_lock().expect("free");
    }
}
