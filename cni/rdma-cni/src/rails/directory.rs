// SPDX-License-Identifier: Apache-2.0
//! A directory that pods may mount, and in which they may write as root. This module opens every name in such a
//! directory relative to the directory, and follows no links.

use super::LARGEST;
use cni_protocol::lock::{self, Held, LockDeadline};
use nix::{
    errno::Errno,
    fcntl::{OFlag, openat, renameat},
    sys::stat::{Mode, fchmod, mkdirat},
    unistd::{UnlinkatFlags, unlinkat},
};
use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::Path,
};

const DIRECTORY: OFlag = OFlag::O_DIRECTORY
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// Limits for the removal of a directory that a pod has created at the path of a file. Without limits, a pod could keep
/// a verb busy by many entries, or exhaust its stack and descriptors by many levels.
const ENTRIES: u32 = 1000;
const LEVELS: u32 = 32;

fn too_much() -> io::Error {
    io::Error::other(format!(
        "a directory with more than {ENTRIES} entries or {LEVELS} levels is at the file's path: remove that directory \
         by hand"
    ))
}

#[derive(Debug)]
pub(super) struct Directory(OwnedFd);

impl Directory {
    /// Opens the directory at `path`, to which only root can write. Returns `None` if the path does not exist. Does not
    /// wait if a pipe is at the path.
    pub(super) fn open(path: &Path) -> io::Result<Option<Self>> {
        let mut options = OpenOptions::new();
        let options = options.read(true).custom_flags(OFlag::O_DIRECTORY.bits());
        match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => Ok(Some(Self(opened?.into()))),
        }
    }

    /// Opens the subdirectory `name`. Returns `None` if it does not exist.
    pub(super) fn enter(&self, name: &str) -> io::Result<Option<Self>> {
        match openat(self.0.as_fd(), name, DIRECTORY, Mode::empty()) {
            Err(Errno::ENOENT) => Ok(None),
            opened => Ok(Some(Self(opened?))),
        }
    }

    /// Opens the subdirectory `name`, or creates it. All users can read the new subdirectory.
    pub(super) fn make(&self, name: &str) -> io::Result<Self> {
        let mode = Mode::from_bits_truncate(0o755);
        let fd = match openat(self.0.as_fd(), name, DIRECTORY, Mode::empty()) {
            Err(Errno::ENOENT) => {
                match mkdirat(self.0.as_fd(), name, mode) {
                    Err(Errno::EEXIST) | Ok(()) => {}
                    Err(error) => return Err(error.into()),
                }
                openat(self.0.as_fd(), name, DIRECTORY, Mode::empty())?
            }
            opened => opened?,
        };
        // sets the mode whatever umask the runtime has
        fchmod(fd.as_fd(), mode)?;
        Ok(Self(fd))
    }

    /// Returns the content of the file `name`. Returns `None` if the file does not exist, is no regular file, or has
    /// more than [`LARGEST`] bytes.
    pub(super) fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        // do not wait for the writer of a pipe
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = match openat(self.0.as_fd(), name, flags, Mode::empty()) {
            Err(Errno::ENOENT | Errno::ELOOP | Errno::ENXIO) => return Ok(None),
            opened => File::from(opened?),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() > LARGEST as u64 {
            return Ok(None);
        }
        let mut text = vec![];
        file.take(LARGEST as u64).read_to_end(&mut text)?;
        Ok(Some(text))
    }

    /// Creates the file `name` with `text`, and replaces an old file or directory. Other users can open the file only
    /// when it is complete.
    pub(super) fn write(&self, name: &str, text: &[u8], mode: u32) -> io::Result<()> {
        self.remove(name)?;
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(self.0.as_fd(), name, flags, Mode::from_bits_truncate(0o600))?;
        let mut file = File::from(fd);
        file.write_all(text)?;
        Ok(fchmod(file.as_fd(), Mode::from_bits_truncate(mode))?)
    }

    /// Moves the file `name` to the directory `to` under the name `of`, and replaces an old file or directory.
    pub(super) fn rename(&self, name: &str, to: &Self, of: &str) -> io::Result<()> {
        let rename = || renameat(self.0.as_fd(), name, to.0.as_fd(), of);
        match rename() {
            Err(Errno::EISDIR) => to.remove(of).and_then(|()| Ok(rename()?)),
            renamed => Ok(renamed?),
        }
    }

    /// Removes `name`: a link without its target, or a directory with its content.
    ///
    /// # Errors
    /// - The directory has more than [`ENTRIES`] entries, or more than [`LEVELS`] levels.
    /// - The system refuses the removal.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        self.remove_tree(name.as_ref(), LEVELS, &mut { ENTRIES })
    }

    /// Removes `name`, with at most `levels` levels and `left` entries.
    fn remove_tree(&self, name: &OsStr, levels: u32, left: &mut u32) -> io::Result<()> {
        match unlinkat(self.0.as_fd(), name, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::ENOENT) => return Ok(()),
            Err(Errno::EISDIR) => {}
            removed => return Ok(removed?),
        }
        let levels = levels.checked_sub(1).ok_or_else(too_much)?;
        let inner = Self(openat(self.0.as_fd(), name, DIRECTORY, Mode::empty())?);
        let own = format!("/proc/self/fd/{}", inner.0.as_raw_fd());
        for entry in fs::read_dir(own)? {
            *left = left.checked_sub(1).ok_or_else(too_much)?;
            inner.remove_tree(&entry?.file_name(), levels, left)?;
        }
        Ok(unlinkat(self.0.as_fd(), name, UnlinkatFlags::RemoveDir)?)
    }

    /// Removes the directory `name`. Keeps a directory that is not empty or that is mounted.
    pub(super) fn remove_directory(&self, name: &str) -> io::Result<()> {
        match unlinkat(self.0.as_fd(), name, UnlinkatFlags::RemoveDir) {
            Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST | Errno::EBUSY) => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Waits for the lock of the file `name`.
    pub(super) fn lock(&self, name: &str, lock_deadline: LockDeadline) -> io::Result<Held> {
        let flags = OFlag::O_RDWR
            | OFlag::O_CREAT
            | OFlag::O_NOFOLLOW
            | OFlag::O_NONBLOCK
            | OFlag::O_CLOEXEC;
        let fd = openat(self.0.as_fd(), name, flags, Mode::from_bits_truncate(0o600))?;
        let file = File::from(fd);
        lock::protect(&file)?;
        lock_deadline.wait(file)
    }
}
