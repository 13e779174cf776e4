// SPDX-License-Identifier: Apache-2.0
//! Lock files that their last holder may remove.

use crate::store::{StoreError, is_absent};
use cni_protocol::{
    lock::{self, Held, LockDeadline},
    state_file::failed,
};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

/// A lock file that this process has locked. Dropping it releases the lock, and keeps the file.
#[derive(Debug)]
pub(crate) struct LockFile {
    _held: Held,
    path: PathBuf,
}

impl LockFile {
    /// Waits for the lock of the file at `path`. Creates the file, and its directory, if it is missing.
    pub(crate) fn wait(path: PathBuf, lock_deadline: LockDeadline) -> Result<Self, StoreError> {
        loop {
            let file = Self::open_first(&path)?;
            let held = lock_deadline.wait(file).map_err(failed("lock", &path))?;
            if lock::is_still(&held, &path) {
                return Ok(Self { _held: held, path });
            }
        }
    }

    /// Takes the lock of the file at `path`. Returns `None` if the lock is held.
    pub(crate) fn attempt(path: PathBuf) -> Result<Option<Self>, StoreError> {
        loop {
            let file = open(&path)?;
            match lock::attempt(file).map_err(failed("lock", &path))? {
                Some(held) if lock::is_still(&held, &path) => {
                    return Ok(Some(Self { _held: held, path }));
                }
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Opens a lock file. Creates the directory of the lock file if it is missing.
    pub(crate) fn open_first(path: &Path) -> Result<File, StoreError> {
        match (open(path), path.parent()) {
            (Err(error), Some(directory)) if is_absent(error.kind()) => {
                fs::create_dir_all(directory).map_err(failed("create", directory))?;
                open(path)
            }
            (opened, _) => opened,
        }
    }

    /// Removes the file, and releases the lock. Tries the removal twice.
    pub(crate) fn discard(self) {
        let remove = || fs::remove_file(&self.path);
        let _ = remove().or_else(|_| remove());
    }
}

fn open(path: &Path) -> Result<File, StoreError> {
    lock::open(path).map_err(failed("open", path))
}
