// SPDX-License-Identifier: Apache-2.0
//! One change in the directory of CNI lists, or in a network's own directory below it (`<network>/`), whose plugins
//! libcni appends to the network's list. The record on disk contains an entry before the entry is added to a file.

use super::{
    Chain, evidence,
    file::{self, Held},
    record::{Placing, Record},
};
use conflist::{Change, Directory, Entry, List, placement};
use rdma_resources::FileError;
use serde_json::{Map, Value};
use std::{fs, io};

/// Returns true if `change` changes a file in a network's own directory. Runtimes do not watch such a directory.
pub(super) fn is_below(change: &Change) -> bool {
    let (Change::Write { file, .. } | Change::Remove { file }) = change;
    placement::is_ours(file)
}

impl Chain {
    /// Prepares for a `change` that writes a detection entry into a network's own directory. The detection entry only
    /// shows whether the runtime calls the plugins of this directory. Makes the directory for the evidence, and checks
    /// that the network's own directory is readable or absent. Does nothing for any other change.
    ///
    /// # Errors
    /// The directory for the evidence cannot be made, or the network's own directory cannot be read.
    pub(super) fn prepare(&self, change: &Change, entry: &Entry) -> Result<(), FileError> {
        match change {
            Change::Write { file, text, .. }
                if placement::is_ours(file) && *text != entry.text() =>
            {
                evidence::prepare(&self.state_dir)?;
                file::can_have_directory(&self.conf.conf_dir.join(file))
            }
            _ => Ok(()),
        }
    }

    /// Removes the network's own directory if this project made the directory for `file`. Keeps the directory if it
    /// contains other files, is a mount point, or is no directory any more.
    ///
    /// # Errors
    /// The directory cannot be removed for another reason.
    pub(super) fn leave(&self, file: &str, placing: &Placing) -> Result<(), FileError> {
        let path = self.conf.conf_dir.join(file);
        let (true, Some(directory)) = (placing.made_directory, path.parent()) else {
            return Ok(());
        };
        // return early, because removing a missing directory can fail on a read-only file system
        if file::is_absent(directory) {
            return Ok(());
        }
        let _ = fs::remove_file(file::temporary(&path));
        // ResourceBusy: the directory is a mount point
        let of_others = [
            io::ErrorKind::NotFound,
            io::ErrorKind::NotADirectory,
            io::ErrorKind::DirectoryNotEmpty,
            io::ErrorKind::ResourceBusy,
        ];
        match fs::remove_dir(directory) {
            Err(error) if !of_others.contains(&error.kind()) => {
                Err(FileError::new("remove", directory, error))
            }
            _ => Ok(()),
        }
    }

    /// Makes the `changes`, which remove `rdma-cni` from lists of `directory`. Returns the names of the changed files.
    /// Also returns true if another program has changed a file since this process read it.
    ///
    /// # Errors
    /// A file or the record cannot be written or removed.
    pub(super) fn take_away(
        &self,
        changes: Vec<Change>,
        directory: &Directory,
        record: &mut Record,
    ) -> Result<(Vec<String>, bool), FileError> {
        let (mut changed, mut again) = (vec![], false);
        if changes.iter().any(is_below) {
            file::announce(&self.conf.conf_dir)?;
        }
        for change in changes {
            let done = self.carry_out(&change, &self.conf.entry, [directory; 2], record)?;
            let (Change::Write { file, .. } | Change::Remove { file }) = change;
            match done {
                Some(_) => changed.push(file),
                None => again = true,
            }
        }
        file::announced(&self.conf.conf_dir)?;
        Ok((changed, again))
    }

    /// Records and makes one change. `directory` is the content from which the change was planned, and `actual` is the
    /// content that this process read from the disk. `entry` is the entry to insert. The inner value is the replaced
    /// file, if another program may still write to it. The outer value is `None` if another program has changed the
    /// file since this process read it.
    pub(super) fn carry_out<'a>(
        &self,
        change: &Change,
        entry: &Entry,
        [directory, actual]: [&'a Directory; 2],
        record: &mut Record,
    ) -> Result<Option<Option<Held>>, FileError> {
        let dir = &self.conf.conf_dir;
        let text_in = |directory: &'a Directory, name: &str| -> &'a str {
            let file = directory.file(name);
            file.and_then(|file| file.text.as_deref().ok())
                .unwrap_or_default()
        };
        match change {
            Change::Remove { file } => {
                file::remove(&dir.join(file))?;
                if let Some(was) = record.lists.remove(file) {
                    // ignore an error: in `uninstall`, `give_back` retries the removal
                    let _ = self.leave(file, &was);
                }
                record.write(&self.state_dir)?;
                Ok(Some(None))
            }
            Change::Write { file, text, .. } if placement::is_ours(file) => {
                let path = dir.join(file);
                let of_network = path.parent().unwrap_or(dir);
                let is_entry = *text == entry.text();
                record.put_in_directory(file, is_entry.then_some(entry), of_network.is_dir());
                record.write(&self.state_dir)?;
                file::write(&path, text)?;
                Ok(Some(None))
            }
            Change::Write { file, text, like } => {
                let from = text_in(directory, like);
                let is_back = record.is_back(file, text);
                let is_new = file == like && entries(from).is_empty();
                let has_entry = |text| entries(text).contains(entry.fields());
                // false: the change removes an entry, or keeps another program's entry
                let is_put_in = has_entry(text) && !has_entry(from);
                if is_put_in {
                    let before = match is_new {
                        true => file::stamp(&dir.join(like), from)?,
                        false => None,
                    };
                    let texts = [directory, actual].map(|it| text_in(it, file));
                    let present: Vec<_> = texts.into_iter().flat_map(entries).collect();
                    record.put(file, entry, &present, before);
                    // if only the stamp differs from the record on disk, write the list first, because starting pods
                    // need the list
                    if !record.is_known(&self.state_dir) {
                        record.write(&self.state_dir)?;
                    }
                }
                let expected = text_in(actual, like);
                let old = file::replace(dir, file, like, text, expected, is_back)?;
                if is_put_in {
                    record.write(&self.state_dir)?;
                }
                Ok(old)
            }
        }
    }
}

/// Returns the entries of `rdma-cni` in the list `text`, by this project or another program.
fn entries(text: &str) -> Vec<Map<String, Value>> {
    let list = List::parse(text).ok();
    list.iter().flat_map(List::all_own).collect()
}
