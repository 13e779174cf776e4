// SPDX-License-Identifier: Apache-2.0
//! Adds the entry of `rdma-cni` to the CNI list of the node's network, keeps the entry in the list, and removes it.
//!
//! | module | owns |
//! |---|---|
//! | this module | one turn: read the directory, plan ([`conflist::plan`]), apply the plan |
//! | [`mod@file`] | atomic replacement of a file |
//! | [`programs`] | programs in the runtime's plugin directories |
//! | [`record`] | record of this project's changes on the node, which `uninstall` undoes |
//! | `change` | one change, and its record |
//! | [`evidence`] | evidence that the runtime calls plugins of a network's own directory |
//! | [`kept_entry`] | selection of the entry for the lists |
//! | [`reconciler`] | the daemon's part: a turn after each change of the directory |
//! | `status` | status: whether the runtime would call `rdma-cni` |
//! | [`sandbox`] | whether the list that made a pod's network had `rdma-cni` |
//!
//! A lock file in the record's directory makes the turns of all processes run one after the other. A turn writes
//! nothing on a node without a record, because a list must not name a plugin that is not installed.

mod change;
pub mod evidence;
pub mod file;
pub mod kept_entry;
pub mod programs;
pub mod reconciler;
pub mod record;
pub mod sandbox;
mod status;

pub use status::ChainStatus;

use conflist::{
    Change, Directory, File, List, Obstacle, Placed, TYPE, called, placement, plan, single::is_from,
};
use daemon_conf::Chain as Conf;
use file::Held;
use kept_entry::KeptEntry;
use rdma_resources::FileError;
use record::Record;
use std::path::PathBuf;

/// Configuration and directories of `rdma-cni` in the chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// Configuration of the chain.
    pub conf: Conf,
    /// Directory of the record.
    pub state_dir: PathBuf,
    /// Directory of libcni's cache of pods' networks. With the placement `auto`, the daemon moves the entry to the
    /// network's own directory only if this cache has a file. `None` in `install` and `uninstall`, which do not check
    /// the cache.
    pub cni_cache: Option<PathBuf>,
    /// True if a turn must not add `rdma-cni` for the first time while `rdma-cni` needs kubelet's socket and the socket
    /// is missing.
    pub needs_kubelet: bool,
}

/// Result of a turn, which reads the directory and adds `rdma-cni` where it is missing.
#[derive(Debug, Default)]
pub struct Turn {
    /// Status after the turn.
    pub status: ChainStatus,
    /// Obstacle to adding `rdma-cni`.
    pub obstacle: Option<Obstacle>,
    /// Names of the files that the turn wrote or removed.
    pub changed: Vec<String>,
    /// Replaced files that other programs may still be writing to.
    pub held: Vec<Held>,
    /// True if another program changed a file during the turn, so that another turn is necessary.
    pub again: bool,
    /// True if an obstacle exists whose end causes no event in the watched directories, so that the reconciler must
    /// poll.
    pub hindered: bool,
    /// Sentence with the reason why the turn skipped a step. The chain works without the skipped step.
    pub remark: Option<String>,
}

impl Chain {
    /// Returns the status: whether the runtime would call `rdma-cni` now. Changes nothing. [`take`](Self::take)
    /// describes `blocker`.
    pub fn status(&self, blocker: impl FnOnce() -> Option<String>) -> ChainStatus {
        let record = Record::read(&self.state_dir).ok().flatten();
        let is_first = record.as_ref().is_none_or(|it| it.lists.is_empty());
        let directory = match self.read() {
            Err(error) => return ChainStatus::NotCalled(error.to_string()),
            Ok(directory) => directory,
        };
        let status = self.status_in(&directory);
        if let Some(why) = is_first.then(blocker).flatten() {
            return status.unless_called(ChainStatus::Withheld(why));
        }
        let Some(record) = record else {
            return status;
        };
        if let (true, ChainStatus::NotCalled(_)) = (record.withdrawn, &status) {
            return ChainStatus::NotCalled(WITHDRAWN.into());
        }
        let without_kubelet = is_first.then(|| self.conf.without_kubelet()).flatten();
        if let (Some(why), ChainStatus::NotCalled(_)) = (without_kubelet, &status) {
            return ChainStatus::NotCalled(why);
        }
        let (runtime, entry) = (&self.conf.runtime, &self.conf.entry);
        match plan::lacking(&directory, runtime, entry, &self.programs(&record)) {
            Some(obstacle) => ChainStatus::NotCalled(obstacle.to_string()),
            None => status,
        }
    }

    /// Runs one turn: adds `rdma-cni` to the chain if it is missing, and updates its entry.
    ///
    /// - `held` are files that earlier turns replaced. If another program has written to such a file since, the turn
    ///   copies the written text to the present file.
    /// - `kept` selects the entry. A new `KeptEntry` selects the entry of this process's configuration.
    /// - `blocker` returns the reason why the turn must not add `rdma-cni`. The turn calls `blocker` only if the record
    ///   has no list. A blocker never removes an existing entry, because DEL of pods with devices needs the entry.
    ///
    /// # Errors
    /// The directory, one of its files or the record cannot be read or written.
    pub fn take(
        &self,
        held: &mut Vec<Held>,
        kept: &mut KeptEntry,
        blocker: impl FnOnce() -> Option<String>,
    ) -> Result<Turn, FileError> {
        // return early, so that a node without an installation gets no file, not even the lock file
        if Record::read(&self.state_dir)?.is_none() {
            (*kept, *held) = (KeptEntry::default(), vec![]);
            return Ok(self.left_alone(&self.read()?, NOT_INSTALLED));
        }
        let lock = record::lock(&self.state_dir)?;
        let mut directory = self.read()?;
        let Some(mut record) = Record::read(&self.state_dir)? else {
            record::unlock_for_good(lock, &self.state_dir)?;
            (*kept, *held) = (KeptEntry::default(), vec![]);
            return Ok(self.left_alone(&directory, NOT_INSTALLED));
        };
        if record.withdrawn {
            (*kept, *held) = (KeptEntry::default(), vec![]);
            return Ok(self.left_alone(&directory, WITHDRAWN));
        }
        // ignore an error: if a list's temporary copy cannot be removed, the next change of the list fails and reports
        // the error
        let _ = record.clear_copies(&self.conf.conf_dir);
        if record.lists.is_empty()
            && let Some(why) = blocker()
        {
            held.clear();
            return Ok(Turn {
                status: self
                    .status_in(&directory)
                    .unless_called(ChainStatus::Withheld(why)),
                hindered: true,
                ..Turn::default()
            });
        }
        if record.lists.is_empty()
            && let Some(why) = self.conf.without_kubelet().filter(|_| self.needs_kubelet)
        {
            held.clear();
            return Ok(Turn {
                status: ChainStatus::NotCalled(why),
                hindered: true,
                ..Turn::default()
            });
        }
        let actual = directory.clone();
        let mut late = vec![];
        held.retain_mut(|it| match it.written_since(&directory) {
            None => !it.is_over(),
            // keep the replaced file open until its late text is in the new file
            Some(text) => {
                late.push((it.name().to_owned(), text));
                true
            }
        });
        if !late.is_empty() {
            directory = with(&directory, &late);
        }
        let entry = kept.entry(&self.conf.entry, &record);
        let plan = plan::attach(
            &directory,
            &self.conf.runtime,
            (&entry, &self.placement(&record)),
            &record.placed(&directory),
            &self.programs(&record),
        );
        let mut changes = plan.changes;
        for (file, text) in late {
            let is_its = |it: &Change| matches!(it, Change::Write { file: at, .. } if *at == file);
            if !changes.iter().any(is_its) {
                let like = file.clone();
                changes.push(Change::Write { file, text, like });
            }
        }
        let mut turn = Turn {
            hindered: self.awaits_cache(&record),
            ..Turn::default()
        };
        changes.retain(|change| match self.prepare(change, &entry) {
            Ok(()) => true,
            // skip only this change: the entry stays in the list, which needs no evidence
            Err(error) => {
                turn.remark = Some(format!(
                    "cannot prepare the network's own directory for {TYPE}, which stays in the list: {error}"
                ));
                false
            }
        });
        let dir = &self.conf.conf_dir;
        let needs_reload = changes.iter().any(change::is_below);
        if needs_reload {
            file::announce(dir)?;
        }
        for change in changes {
            let old = self.carry_out(&change, &entry, [&directory, &actual], &mut record)?;
            let Some(old) = old else {
                turn.again = true;
                // stop here: of two related changes, the second one must not be made if the first one failed
                if needs_reload {
                    break;
                }
                continue;
            };
            let (Change::Write { file, .. } | Change::Remove { file }) = change;
            held.retain(|it| it.name() != file);
            turn.held.extend(old);
            turn.changed.push(file);
        }
        file::announced(dir)?;
        kept.made(entry, &record);
        turn.status = self.status_in(&self.read()?);
        // without an obstacle, keep the status: the next turn retries a change that failed in this turn
        if let Some(obstacle) = &plan.obstacle {
            // the runtime may use a list with `rdma-cni` in spite of the obstacle
            let is_called = matches!(turn.status, ChainStatus::Called(_));
            if !is_called || obstacle.is_of_programs() {
                turn.status = ChainStatus::NotCalled(obstacle.to_string());
            }
        }
        turn.obstacle = plan.obstacle;
        Ok(turn)
    }

    /// Removes `rdma-cni` from the lists if its program is missing, because ADD would fail for every pod of the
    /// network. The lists stay in the record, and a later turn adds the plugin again when the program exists again.
    /// Returns the files that were written or removed.
    ///
    /// # Errors
    /// The directory, one of its files or the record cannot be read or written.
    pub fn take_out(&self) -> Result<Vec<String>, FileError> {
        let _lock = record::lock(&self.state_dir)?;
        let directory = self.read()?;
        let Some(mut record) = Record::read(&self.state_dir)? else {
            return Ok(vec![]);
        };
        if self.programs(&record).has(TYPE) {
            return Ok(vec![]);
        }
        let lists = record.lists.clone();
        let (changes, _) = plan::detach(&directory, &record.placed(&directory));
        let (files, _) = self.take_away(changes, &directory, &mut record)?;
        record.lists = lists;
        record.write(&self.state_dir)?;
        Ok(files)
    }

    fn programs(&self, record: &Record) -> conflist::Programs {
        let others = [self.conf.conf_dir.as_path(), &self.state_dir];
        programs::read(record.bin_dirs(), &others)
    }

    /// Returns the result of a turn that does not add `rdma-cni`, for the reason `why`.
    fn left_alone(&self, directory: &Directory, why: &str) -> Turn {
        Turn {
            status: self
                .status_in(directory)
                .unless_called(ChainStatus::NotCalled(why.into())),
            ..Turn::default()
        }
    }

    /// Returns true if the record has lists and the directory contains none of them. The configured directory is then
    /// probably not the directory of the installation.
    ///
    /// A list counts as recorded if it has the network of a recorded file, because a turn removes a file in the
    /// network's own directory before it updates the record.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(crate) fn has_none_of(&self, record: &Record) -> Result<bool, FileError> {
        let directory = self.read()?;
        let is_of_its_network = |list: &str, file: &File| {
            let text = file.text.as_deref().unwrap_or_default();
            List::parse(text).is_ok_and(|it| placement::file_of(it.name()) == list)
        };
        let is_there = |list: &String| {
            let mut files = directory.all();
            files.any(|file| {
                file.name == *list || is_from(list, &file.name) || is_of_its_network(list, file)
            })
        };
        let mut lists = record.lists_with_entry().peekable();
        Ok(lists.peek().is_some() && !lists.any(is_there))
    }

    /// Removes the recorded entries of `rdma-cni` from the chain. The caller holds the record's lock. Returns the
    /// changed files, and the obstacles.
    ///
    /// # Errors
    /// The directory cannot be read, a file or the record cannot be written, or other programs keep changing the files.
    pub(crate) fn give_back(
        &self,
        record: &mut Record,
    ) -> Result<(Vec<String>, Vec<Obstacle>), FileError> {
        record.clear_copies(&self.conf.conf_dir)?;
        let placings = record.lists.clone();
        let mut files = vec![];
        // read the directory again if a file changes meanwhile
        for _ in 0..TRIES {
            let directory = self.read()?;
            let (changes, obstacles) = plan::detach(&directory, &record.placed(&directory));
            let (changed, again) = self.take_away(changes, &directory, record)?;
            files.extend(changed);
            // try again if a file in a network's own directory cannot be read at the moment
            let is_passed_over = |file: &String| {
                placement::is_ours(file)
                    && directory.file(file).is_none()
                    && file::may_be_there(&self.conf.conf_dir.join(file))
            };
            if !again && !record.lists.keys().any(is_passed_over) {
                let left = |file: &String| {
                    obstacles.iter().any(|it| match it {
                        Obstacle::Broken { file: at, .. } | Obstacle::Refused { file: at, .. } => {
                            at == file
                        }
                        _ => false,
                    })
                };
                // also remove the directories that a killed run made before it could write a file into them
                for (file, placing) in &placings {
                    if let Err(error) = self.leave(file, placing) {
                        log::warn!("{error}: the empty directory stays");
                    }
                }
                record.lists.retain(|file, _| left(file));
                record.write(&self.state_dir)?;
                return Ok((files, obstacles));
            }
        }
        Err(file::busy(&self.conf.conf_dir))
    }

    /// Returns the lists that still name `rdma-cni` or `rdma-ipam`, by an entry of this project or of another program.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(crate) fn still_named(&self) -> Result<Vec<String>, FileError> {
        let directory = self.read()?;
        let named = directory.all().filter(|file| {
            let text = file.text.as_deref().unwrap_or_default();
            conflist::programs::names_ours(text)
        });
        Ok(named.map(|file| file.name.clone()).collect())
    }

    fn read(&self) -> Result<Directory, FileError> {
        let read = Directory::read(&self.conf.conf_dir);
        let read = read.map_err(|error| FileError::new("read", &self.conf.conf_dir, error))?;
        Ok(read.unwrap_or_default())
    }

    fn status_in(&self, directory: &Directory) -> ChainStatus {
        let record = Record::read(&self.state_dir).ok().flatten();
        let placed = record.map_or_else(Placed::new, |it| it.placed(directory));
        match called(directory, &self.conf.runtime, &placed) {
            Ok(called) => ChainStatus::Called(called),
            Err(why) => ChainStatus::NotCalled(why),
        }
    }
}

const NOT_INSTALLED: &str =
    "the plugins are not installed on this node; run rdma-device-plugin install";

const WITHDRAWN: &str = "uninstall removed it from the chain, and keeps the binaries for running pods; \
                         rdma-device-plugin install adds it again";

/// Maximum number of attempts while other programs change files between this program's read and write.
const TRIES: usize = 20;

/// Returns a copy of `directory` in which `texts` replace the texts of the named files.
fn with(directory: &Directory, texts: &[(String, String)]) -> Directory {
    let mut files: Vec<_> = directory.all().cloned().collect();
    for (name, text) in texts {
        files.retain(|file| file.name != *name);
        files.push(File {
            name: name.clone(),
            text: Ok(text.clone()),
        });
    }
    Directory::new(files)
}
