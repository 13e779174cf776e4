// SPDX-License-Identifier: Apache-2.0
//! One change to the disk, and the seam that makes it.
//!
//! Everything that the plugin does to a disk is a [`Change`]. A test puts a [`Disk`] of its
//! own in between that stops after the n-th.

use super::{StoreError, make};
use std::{
    cell::RefCell,
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, symlink},
    path::PathBuf,
};

/// A change, in one or two system calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// `mkdir -p`, mode 0755.
    MakeDirectory(PathBuf),
    /// A new file with `content`.
    Write {
        /// Where; nothing is there.
        path: PathBuf,
        /// What.
        content: Vec<u8>,
        /// Permissions.
        mode: u32,
        /// Whether it is on the disk when this returns.
        durable: bool,
    },
    /// `ln FROM TO`; fails if `to` is there.
    Link {
        /// A file.
        from: PathBuf,
        /// Its other name.
        to: PathBuf,
    },
    /// `ln -s TEXT PATH`: a note is a symbolic link that leads nowhere, so that it is never
    /// seen without its text.
    Note {
        /// Where; fails if something is there.
        path: PathBuf,
        /// What it says.
        text: String,
    },
    /// `mv FROM TO`, over what is there.
    Rename {
        /// A file.
        from: PathBuf,
        /// Its new name.
        to: PathBuf,
    },
    /// `rm PATH`
    Remove(PathBuf),
    /// What was made and removed in this directory is on the disk when this returns.
    Sync(PathBuf),
}

impl Change {
    /// In a word, for errors.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::MakeDirectory(_) | Self::Note { .. } | Self::Link { .. } => "create",
            Self::Write { .. } | Self::Rename { .. } => "write",
            Self::Remove(_) => "remove",
            Self::Sync(_) => "sync",
        }
    }

    /// What it is made to.
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

/// Makes changes.
pub trait Disk {
    /// Makes one.
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

/// The real disk, where what is made and removed in directories is waited for once for several calls: nobody is told of
/// it before.
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
    /// All of it is on the disk when this returns.
    ///
    /// # Errors
    /// A directory cannot be synced. It and those after it are tried again by the next call.
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
    fn what_is_deferred_is_waited_for_once() {
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
