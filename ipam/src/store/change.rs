// SPDX-License-Identifier: Apache-2.0
//! Changes of the disk, and the trait that makes them.
//!
//! Every write of the plugin to disk is a [`Change`]. Tests implement a [`Disk`] that stops after a number of
//! changes.

use super::{StoreError, make};
use std::{
    cell::RefCell,
    collections::BTreeSet,
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, symlink},
    path::PathBuf,
};

/// A change of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Makes a directory and its parents, mode 0755.
    MakeDirectory(PathBuf),
    /// Makes a new file with `content`.
    Write {
        /// Path of the file. No file exists there.
        path: PathBuf,
        /// Content of the file.
        content: Vec<u8>,
        /// Permissions.
        mode: u32,
        /// True if the change also syncs the file to disk.
        durable: bool,
    },
    /// Makes a hard link. Fails if `to` exists.
    Link {
        /// Existing file.
        from: PathBuf,
        /// Path of the new link.
        to: PathBuf,
    },
    /// Makes a note: a symbolic link without a real target, whose target is the note's text. The kernel makes a link
    /// together with its target, so every note that a process sees is complete.
    Note {
        /// Path of the note. The change fails if a file exists there.
        path: PathBuf,
        /// Text of the note.
        text: String,
    },
    /// Renames a file, and replaces an existing file.
    Rename {
        /// Old name.
        from: PathBuf,
        /// New name.
        to: PathBuf,
    },
    /// Removes a file.
    Remove(PathBuf),
    /// Syncs the directory to disk, with all entries that were made or removed before the sync.
    Sync(PathBuf),
}

impl Change {
    /// Returns the verb that error messages use for the change.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::MakeDirectory(_) | Self::Note { .. } | Self::Link { .. } => "create",
            Self::Write { .. } | Self::Rename { .. } => "write",
            Self::Remove(_) => "remove",
            Self::Sync(_) => "sync",
        }
    }

    /// Returns the path that the change affects.
    pub fn path(&self) -> &PathBuf {
        match self {
            Self::MakeDirectory(path)
            | Self::Write { path, .. }
            | Self::Note { path, .. }
            | Self::Remove(path)
            | Self::Sync(path) => path,
            Self::Link { to, .. } | Self::Rename { to, .. } => to,
        }
    }
}

/// Interface through which the plugin makes changes.
pub trait Disk: fmt::Debug {
    /// Makes one change.
    fn make(&self, change: &Change) -> io::Result<()>;
}

/// The real disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn make(&self, change: &Change) -> io::Result<()> {
        match change {
            Change::MakeDirectory(path) => fs::create_dir_all(path),
            Change::Write {
                path,
                content,
                mode,
                durable,
            } => {
                let mut options = OpenOptions::new();
                let options = options.write(true).create_new(true).mode(*mode);
                let mut file = options.open(path)?;
                file.write_all(content)?;
                if *durable { file.sync_all() } else { Ok(()) }
            }
            Change::Link { from, to } => fs::hard_link(from, to),
            Change::Note { path, text } => symlink(text, path),
            Change::Rename { from, to } => fs::rename(from, to),
            Change::Remove(path) => fs::remove_file(path),
            Change::Sync(path) => File::open(path)?.sync_all(),
        }
    }
}

/// The real disk, with deferred syncs of directories. One sync covers several calls, before the caller reports a
/// result.
#[derive(Debug, Default)]
pub struct Deferred {
    directories: RefCell<BTreeSet<PathBuf>>,
}

impl Disk for Deferred {
    fn make(&self, change: &Change) -> io::Result<()> {
        match change {
            Change::Sync(path) => {
                self.directories.borrow_mut().insert(path.clone());
                Ok(())
            }
            change => RealDisk.make(change),
        }
    }
}

impl Deferred {
    /// Makes the deferred syncs.
    ///
    /// # Errors
    /// A directory cannot be synced. The next call syncs this directory and the remaining ones.
    pub fn settle(&self) -> Result<(), StoreError> {
        let mut directories = self.directories.borrow_mut();
        while let Some(path) = directories.first().cloned() {
            make(&RealDisk, Change::Sync(path.clone()))?;
            directories.remove(&path);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deferred_change_is_synced_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let (own, gone) = (directory.path().to_owned(), directory.path().join("gone"));
        let disk = Deferred::default();
        let link = own.join("a");
        let note = Change::Note {
            path: link.clone(),
            text: "b".into(),
        };
        disk.make(&note).expect("it is made at once");
        assert!(link.is_symlink());
        for path in [&own, &own, &gone] {
            disk.make(&Change::Sync(path.clone())).expect("later");
        }
        let StoreError { path, source, .. } = disk.settle().expect_err("it is not there");
        assert_eq!((&path, source.kind()), (&gone, io::ErrorKind::NotFound));
        fs::create_dir(&gone).expect("a directory");
        disk.settle().expect("both are there");
        fs::remove_dir(&gone).expect("an empty directory");
        disk.settle().expect("nothing is left to do");
    }
}
