// SPDX-License-Identifier: Apache-2.0
//! Adds `rdma-cni` to the CNI list of the node's network, keeps the entry there, and removes it again.
//!
//! | module | owns |
//! |---|---|
//! | this one | one turn: read the directory, plan ([`conflist::plan`]), apply the plan |
//! | [`mod@file`] | atomic replacement of a file |
//! | [`programs`] | programs in the runtime's plugin directories |
//! | [`record`] | record of the changes of the node, for undoing them |
//! | `change` | one change, recorded before it is made |
//! | [`evidence`] | evidence that the runtime calls plugins of a network's own directory |
//! | [`claim`] | selection of the entry that is kept |
//! | [`reconciler`] | the daemon's part: a turn after each change of the directory |
//! | `status` | status: whether the runtime would call our plugin |
//! | [`sandbox`] | whether a pod's network was made by a list with our plugin in it |
//!
//! A lock beside the record makes the turns of all processes run one after the other. Without a record on the node
//! nothing is written, because a list must not name a plugin that is not installed.

mod change;
pub mod claim;
pub mod evidence;
pub mod file;
pub mod programs;
pub mod reconciler;
pub mod record;
pub mod sandbox;
mod status;

pub use status::ChainStatus;

use crate::conf::Chain as Conf;
use claim::Claim;
use conflist::{
    Change, Directory, File, List, Obstacle, TYPE, called, placement, plan, single::is_from,
};
use file::Held;
use rdma_resources::FileError;
use record::Record;
use std::{collections::BTreeSet, path::PathBuf};

/// Our plugin in the chain, as configured.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// Configuration of the chain.
    pub conf: Conf,
    /// Directory of the record.
    pub state_dir: PathBuf,
    /// Directory of libcni's cache of pods' networks, if it is visible. The cache shows pods whose network was made
    /// without `rdma-cni`.
    pub cni_cache: Option<PathBuf>,
    /// Requires that our plugin can reach kubelet before it is added.
    pub needs_kubelet: bool,
}

/// Result of a turn.
#[derive(Debug, Default)]
pub struct Turn {
    /// Status after the turn.
    pub status: ChainStatus,
    /// Obstacle to adding our plugin.
    pub obstacle: Option<Obstacle>,
    /// Files that were written or removed.
    pub changed: Vec<String>,
    /// Replaced files that other programs may still be writing to.
    pub held: Vec<Held>,
    /// True if a file changed meanwhile, so that another turn is necessary.
    pub again: bool,
    /// True if an obstacle exists whose end no change of a directory shows.
    pub hindered: bool,
    /// Reason for a step that was skipped without harm, in a sentence.
    pub remark: Option<String>,
}

impl Chain {
    /// Returns whether the runtime would call our plugin now, and changes nothing. For `blocker` see
    /// [`take`](Self::take).
    pub fn status(&self, blocker: impl FnOnce() -> Option<String>) -> ChainStatus {
        let record = Record::read(&self.state_dir).ok().flatten();
        let is_first = record.as_ref().is_none_or(|it| it.lists.is_empty());
        let directory = match self.read() {
            Err(error) => return ChainStatus::NotCalled(error.to_string()),
            Ok(directory) => directory,
        };
        let status = self.status_in(&directory);
        if let Some(why) = is_first.then(blocker).flatten() {
            return status.withheld(why);
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

    /// Adds our plugin to the chain if it is missing. `held` are files that earlier turns replaced: if another program
    /// has written text to such a file since, this text replaces the present file.
    ///
    /// `claim` selects the entry that is written. A new claim selects this daemon's entry.
    ///
    /// `blocker` returns the reason why our plugin must not be added. It is called only if no list has our plugin. An
    /// existing entry is never removed because of a blocker, because DEL of pods with devices needs the entry.
    ///
    /// # Errors
    /// The directory, one of its files or the record cannot be read or written.
    pub fn take(
        &self,
        held: &mut Vec<Held>,
        claim: &mut Claim,
        blocker: impl FnOnce() -> Option<String>,
    ) -> Result<Turn, FileError> {
        // nothing is made on a node without an installation, not even the lock file
        if Record::read(&self.state_dir)?.is_none() {
            (*claim, *held) = (Claim::default(), vec![]);
            return Ok(self.left_alone(&self.read()?, NOT_INSTALLED));
        }
        let lock = record::lock(&self.state_dir)?;
        let mut directory = self.read()?;
        let Some(mut record) = Record::read(&self.state_dir)? else {
            record::unlock_for_good(lock, &self.state_dir)?;
            (*claim, *held) = (Claim::default(), vec![]);
            return Ok(self.left_alone(&directory, NOT_INSTALLED));
        };
        if record.withdrawn {
            (*claim, *held) = (Claim::default(), vec![]);
            return Ok(self.left_alone(&directory, WITHDRAWN));
        }
        // a copy that stays obstructs a change, which reports it
        let _ = record.clear_copies(&self.conf.conf_dir);
        if record.lists.is_empty()
            && let Some(why) = blocker()
        {
            held.clear();
            return Ok(Turn {
                status: self.status_in(&directory).withheld(why),
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
            // the replaced file is held until its text is in place
            Some(text) => {
                late.push((it.name().to_owned(), text));
                true
            }
        });
        if !late.is_empty() {
            directory = with(&directory, &late);
        }
        let entry = claim.entry(&self.conf.entry, &record);
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
            // the entry in the list works without evidence
            Err(error) => {
                turn.remark = Some(format!(
                    "cannot detect whether the runtime calls the plugins of the network's own directory: {error}"
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
                // stop after a failure: the second of two changes that belong together must not be made without the
                // first
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
        claim.made(entry, &record);
        turn.status = self.status_in(&self.read()?);
        // without an obstacle, a change that was not made is made in the next turn
        if let Some(obstacle) = &plan.obstacle {
            // a list of ours may still be in use
            let is_called = matches!(turn.status, ChainStatus::Called(_));
            if !is_called || obstacle.is_of_programs() {
                turn.status = ChainStatus::NotCalled(obstacle.to_string());
            }
        }
        turn.obstacle = plan.obstacle;
        Ok(turn)
    }

    /// Removes our plugin from the lists because its program is missing, so that ADD does not fail for every pod of the
    /// node. The record remembers the lists, and a later turn adds the plugin again when the program is back. Returns
    /// the files that were written or removed.
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
        let mut files = vec![];
        if changes.iter().any(change::is_below) {
            file::announce(&self.conf.conf_dir)?;
        }
        for change in changes {
            let done = self.take_away(&change, &directory, &mut record)?;
            let (Change::Write { file, .. } | Change::Remove { file }) = change;
            files.extend(done.map(|_| file));
        }
        file::announced(&self.conf.conf_dir)?;
        record.lists = lists;
        record.write(&self.state_dir)?;
        Ok(files)
    }

    /// Returns the programs in the runtime's plugin directories.
    fn programs(&self, record: &Record) -> conflist::Programs {
        let others = [self.conf.conf_dir.as_path(), &self.state_dir];
        programs::read(record.bin_dirs(), &others)
    }

    /// Returns the result of a turn that adds nothing.
    fn left_alone(&self, directory: &Directory, why: &str) -> Turn {
        Turn {
            status: match self.status_in(directory) {
                called @ ChainStatus::Called(_) => called,
                _ => ChainStatus::NotCalled(why.into()),
            },
            ..Turn::default()
        }
    }

    /// Returns true if the directory has none of the record's lists. It may then be another directory than at the
    /// installation. A list of the same network also counts as a list of the record, because a file in the network's
    /// own directory is removed before the record is updated.
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

    /// Removes our plugin from the chain. The caller holds the lock. Returns the changed files, and for each file that
    /// could not be changed the reason.
    ///
    /// # Errors
    /// The directory, one of its files or the record cannot be read or written.
    pub(crate) fn give_back(
        &self,
        record: &mut Record,
    ) -> Result<(Vec<String>, Vec<Obstacle>), FileError> {
        record.clear_copies(&self.conf.conf_dir)?;
        let placings = record.lists.clone();
        let mut files = vec![];
        // a file that changes meanwhile is read again
        for _ in 0..TRIES {
            let directory = self.read()?;
            let (changes, obstacles) = plan::detach(&directory, &record.placed(&directory));
            let mut again = false;
            if changes.iter().any(change::is_below) {
                file::announce(&self.conf.conf_dir)?;
            }
            for change in changes {
                again |= self.take_away(&change, &directory, record)?.is_none();
                let (Change::Write { file, .. } | Change::Remove { file }) = change;
                files.push(file);
            }
            file::announced(&self.conf.conf_dir)?;
            // a network's own directory that cannot be read at the moment is retried
            let is_passed_over = |file: &String| {
                placement::is_ours(file)
                    && directory.file(file).is_none()
                    && file::may_be_there(&self.conf.conf_dir.join(file))
            };
            again |= record.lists.keys().any(is_passed_over);
            if !again {
                let left = |file: &String| {
                    obstacles.iter().any(|it| match it {
                        Obstacle::Broken { file: at, .. } | Obstacle::Refused { file: at, .. } => {
                            at == file
                        }
                        _ => false,
                    })
                };
                // includes lists of a run that was killed before it wrote the file
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

    /// Returns the lists that still contain our plugin, whichever program added it.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(crate) fn still_named(&self) -> Result<Vec<String>, FileError> {
        let directory = self.read()?;
        let named = directory.all().filter(|file| {
            let text = file.text.as_deref().unwrap_or_default();
            let picked = conflist::Picked::read(&file.name, text);
            picked.is_ok_and(|it| it.ours.is_some())
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
        let placed = record.map_or_else(BTreeSet::new, |it| it.placed(directory));
        match called(directory, &self.conf.runtime, &placed) {
            Ok(called) => ChainStatus::Called(called),
            Err(why) => ChainStatus::NotCalled(why),
        }
    }
}

const NOT_INSTALLED: &str =
    "the plugins are not installed on this node; run rdma-device-plugin install";

const WITHDRAWN: &str = "uninstall removed it from the chain, and keeps the binaries for pods that have devices; \
                         rdma-device-plugin install adds it again";

/// Number of attempts for files that change between reading and writing.
const TRIES: usize = 20;

/// Returns `directory` with other texts.
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
