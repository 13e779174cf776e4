// SPDX-License-Identifier: Apache-2.0
//! The check that a directory is writable, which writes nothing.

use nix::{
    errno::Errno,
    sys::statvfs::statvfs,
    unistd::{AccessFlags, access},
};
use std::{fs, io, path::Path};

/// Checks that files can be created in `directory`, and that its file system has free space. If `directory` does not
/// exist, checks its nearest existing ancestor.
///
/// # Errors
/// Returns the error that a write would return.
pub fn check(directory: &Path) -> io::Result<()> {
    // a dangling link counts as existing: no directory can be made at its path
    let is_there = |path: &&Path| fs::symlink_metadata(path).is_ok();
    let there = directory.ancestors().find(is_there);
    let there = there.unwrap_or(Path::new("/"));
    if !there.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    // fails with EROFS on a read-only file system, also for root
    access(there, AccessFlags::W_OK | AccessFlags::X_OK)?;
    let system = statvfs(there)?;
    // some file systems report 0 inodes in total
    let no_inode = system.files() > 0 && system.files_available() == 0;
    match system.blocks_available() == 0 || no_inode {
        true => Err(Errno::ENOSPC.into()),
        false => Ok(()),
    }
}
