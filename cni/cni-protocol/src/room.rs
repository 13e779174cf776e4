// SPDX-License-Identifier: Apache-2.0
//! Checks that files can be created in a directory, without writing.

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
/// The error that a write would return.
pub fn check(directory: &Path) -> io::Result<()> {
    // a dangling link counts as existing, because no directory can be made at its path
    let is_there = |path: &&Path| fs::symlink_metadata(path).is_ok();
    let there = directory.ancestors().find(is_there);
    let there = there.unwrap_or(Path::new("/"));
    if !there.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    // on a read-only file system this call fails with EROFS, even for root
    access(there, AccessFlags::W_OK | AccessFlags::X_OK)?;
    let system = statvfs(there)?;
    // some file systems report a total of 0 inodes
    let no_inode = system.files() > 0 && system.files_available() == 0;
    match system.blocks_available() == 0 || no_inode {
        true => Err(Errno::ENOSPC.into()),
        false => Ok(()),
    }
}
