// SPDX-License-Identifier: Apache-2.0
//! What was done to the node: `<stateDir>/install.json`. It is written before the node is
//! changed, so that whatever a killed run left can be found.

use super::file::{self, Stamp, hash, system};
use cni_protocol::{
    lock::{self, Held},
    state_file,
};
use conflist::{Directory, Entry, List, placement, single::SUFFIX};
use doctor::Installed;
use rdma_resources::FileError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The format of the record. A reader refuses a higher one.
const FORMAT: u32 = 2;

/// Where container runtimes look for CNI plugins.
pub const BIN_DIR: &str = "/opt/cni/bin";

const LOCK: &str = "install.lock";

/// The record cannot be read, written or locked.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The kernel refuses.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is no record.
    #[error("{path:?} is no record of an install: {problem}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        problem: String,
    },
    /// It is of a later version.
    #[error("{path:?} has format {format}, and this version knows {FORMAT}; use the newer one")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: u32,
    },
}

/// What was done to the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    format: u32,
    /// Where the plugins were put; none: [`BIN_DIR`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bin_dir: Option<PathBuf>,
    /// Where the runtime looks for other plugins after that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_bin_dirs: Vec<PathBuf>,
    /// Where the lists are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conf_dir: Option<PathBuf>,
    /// The network of the entry, where the runtime uses networks by their names; of the last installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The plugins that were put into the directory of binaries, by name.
    #[serde(default)]
    pub binaries: BTreeMap<String, Binary>,
    /// The lists that our plugin was put into, by the name of the file.
    #[serde(default)]
    pub lists: BTreeMap<String, Placing>,
    /// `uninstall` has taken our plugin out of the lists, and the binaries are there still: nobody but
    /// `install` puts it in again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub withdrawn: bool,
}

/// As serde asks it.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands it a reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}

/// As `doctor` uses it.
impl From<Record> for Installed {
    fn from(record: Record) -> Self {
        Self {
            bin_dirs: record.bin_dirs(),
            conf_dir: record.conf_dir,
            network: record.network,
        }
    }
}

/// A plugin's binary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binary {
    /// Of its content, hexadecimal.
    pub sha256: String,
    /// That of ours which it takes the place of: a run may have been killed before it wrote this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Whether it took the place of one that was not ours, which is kept in `replaced`.
    #[serde(default)]
    pub replaced: bool,
}

impl Binary {
    /// Whether a content with this hash was put there by us.
    pub fn is_ours(&self, sha256: &str) -> bool {
        self.sha256 == sha256 || self.before.as_deref() == Some(sha256)
    }
}

/// A list with our plugin in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placing {
    /// The file before; none: there was none, or it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Stamp>,
    /// Our plugin's configuration as it was put in last, and the one before: a run may have been
    /// killed before it wrote the list.
    #[serde(default)]
    pub entries: Vec<Map<String, Value>>,
    /// Whether the network's own directory was made for it.
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
            binaries: BTreeMap::new(),
            lists: BTreeMap::new(),
            withdrawn: false,
        }
    }
}

impl Record {
    /// The record below `state_dir`; none: nothing was installed.
    ///
    /// # Errors
    /// There is one that cannot be read.
    pub fn read(state_dir: &Path) -> Result<Option<Self>, RecordError> {
        let path = path(state_dir);
        let text = match state_file::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(system("read", &path))?,
        };
        Self::parse(&text, &path).map(Some)
    }

    /// What `text` says, which is the content of the file `path`.
    ///
    /// # Errors
    /// It is no record, or one of a later version.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, RecordError> {
        let path = || path.to_owned();
        let record: Self = serde_json::from_slice(text).map_err(|error| RecordError::Corrupt {
            path: path(),
            problem: error.to_string(),
        })?;
        match record.format {
            format if format > FORMAT => Err(RecordError::Newer {
                path: path(),
                format,
            }),
            _ => Ok(record),
        }
    }

    /// Removes the copies that a killed run left beside the lists of `conf_dir`: it had put our plugin into one, and had
    /// not removed its copy. No runtime reads them; the lock is held by the caller.
    ///
    /// # Errors
    /// One cannot be removed.
    pub(super) fn clear_copies(&self, conf_dir: &Path) -> Result<(), FileError> {
        let mut lists = self.lists.keys();
        lists.try_for_each(|list| file::remove(&file::temporary(&conf_dir.join(list))))
    }

    /// Where the plugins are.
    pub fn bin_dir(&self) -> &Path {
        self.bin_dir.as_deref().unwrap_or(Path::new(BIN_DIR))
    }

    /// Where the runtime looks for plugins, in this order.
    pub fn bin_dirs(&self) -> Vec<PathBuf> {
        let first = [self.bin_dir().to_owned()].into_iter();
        first.chain(self.further_bin_dirs.iter().cloned()).collect()
    }

    /// Writes it, unless it says the same already.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, state_dir: &Path) -> Result<(), RecordError> {
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
        Ok(write().map_err(system("write", &path))?)
    }

    /// Whether what is written says the same, but for what files were like before.
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

    /// Takes it away: nothing of ours is left on the node.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(state_dir: &Path) -> Result<(), RecordError> {
        Ok(file::remove(&path(state_dir))?)
    }

    /// The files of `directory` that our plugin was put into. Where it has another configuration by
    /// now, somebody else wrote that, and it is theirs.
    pub fn placed(&self, directory: &Directory) -> BTreeSet<String> {
        let is_ours = |(file, placing): &(&String, &Placing)| {
            let text = directory.file(file).and_then(|it| it.text.as_deref().ok());
            let list = text.and_then(|text| List::parse(text).ok());
            let present = list.and_then(|list| list.own());
            let has_our_name = file.ends_with(SUFFIX) || placement::is_ours(file);
            has_our_name || present.is_none_or(|it| placing.entries.contains(&it))
        };
        let lists = self.lists.iter().filter(is_ours);
        lists.map(|(file, _)| file.clone()).collect()
    }

    /// Our plugin is put into `file`; `before` is what the file was without it, where that is seen.
    pub(crate) fn put(&mut self, file: &str, entry: &Entry, before: Option<Stamp>) {
        let placing = self.lists.entry(file.to_owned()).or_default();
        let present = entry.fields();
        placing.entries.retain(|entry| entry != present);
        placing.entries.insert(0, present.clone());
        placing.entries.truncate(2);
        if before.is_some() {
            placing.before = before;
        }
    }

    /// Our plugin's `entry` is put into `file` of a network's own directory, which is made for it if it is not
    /// there; none: one that only finds out whether the runtime calls it.
    pub(crate) fn put_in_directory(&mut self, file: &str, entry: Option<&Entry>, is_there: bool) {
        let placing = self.lists.entry(file.to_owned()).or_default();
        placing.entries = entry.map(|it| it.fields().clone()).into_iter().collect();
        placing.made_directory |= !is_there;
    }

    /// The files that have our plugin's entry, and not one that only finds something out.
    pub(crate) fn lists_with_entry(&self) -> impl Iterator<Item = &String> {
        let with_entry = |(file, placing): &(&String, &Placing)| {
            !placement::is_ours(file) || !placing.entries.is_empty()
        };
        let lists = self.lists.iter().filter(with_entry);
        lists.map(|(file, _)| file)
    }

    /// The networks' own directories that have a file of ours.
    pub(crate) fn directories(&self) -> impl Iterator<Item = &str> {
        let files = self.lists.keys().filter(|file| placement::is_ours(file));
        files.filter_map(|file| Some(file.rsplit_once('/')?.0))
    }

    /// The time of the last change that `file` had, if `text` is what it was before.
    pub(crate) fn is_back(&self, file: &str, text: &str) -> Option<SystemTime> {
        let before = self.lists.get(file)?.before.as_ref()?;
        (before.sha256 == hash(text.as_bytes())).then(|| before.modified())
    }
}

/// Waits for other processes' turns. It is over when the answer is dropped. What a killed run, or a loss of power, left
/// of the record goes.
///
/// # Errors
/// The lock's file cannot be made, or what was left cannot be removed.
pub fn lock(state_dir: &Path) -> Result<Held, RecordError> {
    let path = state_dir.join(LOCK);
    let open = || match state_file::open(&path) {
        // one that is there is not opened for writing: who watches the directory would hear of
        // it, and look, and lock again
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(state_dir)?;
            state_file::make(&path, 0o600)
        }
        file => file,
    };
    let held = lock::hold(&path, open).map_err(system("lock", &path))?;
    file::remove(&state_dir.join("install.json.new"))?;
    Ok(held)
}

/// The last of ours goes: the lock's file, and the directory if nothing else is in it, and it can be removed: in
/// a pod it is a mount.
///
/// # Errors
/// A file cannot be removed, or that cannot be put on the disk.
pub fn unlock_for_good(lock: Held, state_dir: &Path) -> Result<(), RecordError> {
    file::remove(&state_dir.join(LOCK))?;
    let changed = match fs::remove_dir(state_dir) {
        Ok(()) => state_dir.parent().unwrap_or(Path::new("/")),
        Err(error) if stays(&error) => state_dir,
        Err(error) => return Err(system("remove", state_dir)(error).into()),
    };
    file::sync(changed).map_err(system("sync", changed))?;
    drop(lock);
    Ok(())
}

/// Whether a directory is not removed because something else is in it, it is mounted, or where it is may not be changed.
fn stays(error: &io::Error) -> bool {
    use io::ErrorKind::{DirectoryNotEmpty, PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    matches!(
        error.kind(),
        DirectoryNotEmpty | PermissionDenied | ReadOnlyFilesystem | ResourceBusy
    )
}

/// Where the record is.
pub fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("install.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_is_over_keeps_nobody_waiting_though_a_forked_child_has_the_file_yet() {
        let state = tempfile::tempdir().expect("a directory");
        let turn = lock(state.path()).expect("free");
        // the same open file, as a child has it until it is another program
        let _forked = turn.try_clone().expect("one more descriptor");
        drop(turn);
        let next = fs::File::open(state.path().join(LOCK)).expect("the file");
        next.try_lock().expect("free");
    }
}
