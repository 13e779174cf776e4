// SPDX-License-Identifier: Apache-2.0
//! One change to the disk, and the seam that makes it.
//!
//! Everything that the plugin does to a disk is a [`Change`]. A test puts a [`Disk`] of its
//! own in between that stops after the n-th.

use std::{
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
