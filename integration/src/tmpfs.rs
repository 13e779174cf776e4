// SPDX-License-Identifier: Apache-2.0
//! Separate file systems in memory, which a test can fill or make read-only.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::{
    fs,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

/// A tmpfs. Drop unmounts it.
#[derive(Debug)]
pub struct Tmpfs {
    path: PathBuf,
}

impl Tmpfs {
    /// Mounts a tmpfs of only 64 KiB on `path`, which this function creates.
    #[track_caller]
    pub fn mount(path: &Path) -> Self {
        Self::of("size=64k,mode=700", path)
    }

    /// Creates `path`, and mounts a tmpfs with `options` (tmpfs(5)) there.
    #[track_caller]
    pub fn of(options: &str, path: &Path) -> Self {
        fs::create_dir_all(path).expect("the mount point can be made");
        mount(
            Some("tmpfs"),
            path,
            Some("tmpfs"),
            MsFlags::empty(),
            Some(options),
        )
        .unwrap_or_else(|error| panic!("cannot mount a tmpfs on {path:?}: {error}"));
        Self {
            path: path.to_owned(),
        }
    }

    /// Makes the file system read-only.
    #[track_caller]
    pub fn make_read_only(&self) {
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, &self.path, None::<&str>, flags, None::<&str>)
            .unwrap_or_else(|error| panic!("cannot remount {:?} read-only: {error}", self.path));
    }

    /// Fills the file system completely: the next write fails.
    #[track_caller]
    pub fn fill(&self) {
        let mut ballast = fs::File::create(self.path.join("ballast")).expect("ballast");
        loop {
            match ballast.write(&[0; 4096]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return,
                Err(error) => panic!("cannot fill {:?}: {error}", self.path),
            }
        }
    }

    /// Removes the file that [`Self::fill`] has written.
    #[track_caller]
    pub fn make_room(&self) {
        fs::remove_file(self.path.join("ballast")).expect("there is ballast");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // MNT_DETACH: a plugin that is ending may still use the file system.
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
    }
}
