// SPDX-License-Identifier: Apache-2.0
//! Whether files can be written, found out without writing one.

use nix::{
    errno::Errno,
    sys::statvfs::statvfs,
    unistd::{AccessFlags, access},
};
use std::{fs, io, path::Path};

/// Whether `directory`, or what of its path is there, takes files and has room for them.
///
/// # Errors
/// Why not, as a write would say.
pub fn check(directory: &Path) -> io::Result<()> {
    // a link that leads to nothing is there: no directory can be made in its place
    let is_there = |path: &&Path| fs::symlink_metadata(path).is_ok();
    let there = directory.ancestors().find(is_there);
    let there = there.unwrap_or(Path::new("/"));
    if !there.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    // refuses on a file system that is read-only, whoever asks
    access(there, AccessFlags::W_OK | AccessFlags::X_OK)?;
    let system = statvfs(there)?;
    // some file systems do not count inodes
    let no_inode = system.files() > 0 && system.files_available() == 0;
    match system.blocks_available() == 0 || no_inode {
        true => Err(Errno::ENOSPC.into()),
        false => Ok(()),
    }
}
