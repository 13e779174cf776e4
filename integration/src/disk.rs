// SPDX-License-Identifier: Apache-2.0
//! A disk with a real file system for one test. A power loss removes unsynced data.

use crate::{netns::check, wait};
use nix::{
    libc,
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
    unistd::syncfs,
};
use std::{
    env,
    fs::File,
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
};
use tempfile::TempDir;

/// Mount point for a test and its child processes. Other processes see the original directory at this path.
const MOUNT_POINT: &str = "/mnt";

/// True if tests of this program use disks.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// `FS_IOC_SHUTDOWN`, `_IOR('X', 125, __u32)` (`include/uapi/linux/fs.h`); ext4 and XFS have it.
const SHUTDOWN: libc::Ioctl = 0x8004_587d_u32 as libc::Ioctl;

/// Flag for a shutdown that does not even write the journal (`FS_SHUTDOWN_FLAGS_NOLOGFLUSH`).
const WITHOUT_JOURNAL: u32 = 2;

/// Size in bytes, the minimum for XFS.
const SIZE: u64 = 300 << 20;

/// File system of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// ext4, the default of Debian and Ubuntu.
    Ext4,
    /// XFS, the default of Red Hat and its derivatives.
    Xfs,
}

impl Format {
    /// All file systems.
    pub const ALL: [Self; 2] = [Self::Ext4, Self::Xfs];

    /// Returns the usual spelling of the format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "XFS",
        }
    }

    fn command(self) -> Command {
        let (program, arguments): (_, &[&str]) = match self {
            Self::Ext4 => ("mkfs.ext4", &["-q", "-F"]),
            Self::Xfs => ("mkfs.xfs", &["-q", "-f"]),
        };
        let mut command = Command::new(program);
        command.args(arguments);
        command
    }
}

/// A file that is mounted by a loop device. Drop unmounts and removes the file.
#[derive(Debug)]
pub struct Disk {
    /// The disk's file system.
    pub format: Format,
    directory: TempDir,
}

impl Disk {
    /// Makes a disk with an empty file system, in which this test's later temporary directories are. Only this thread
    /// and its child processes see the mount: a mount in another process would keep the file system alive.
    #[track_caller]
    pub fn for_temporary_directories(format: Format) -> Self {
        let disk = Self {
            format,
            directory: TempDir::new_in(env::temp_dir()).expect("a directory"),
        };
        let image = File::create(disk.image()).expect("a file");
        image.set_len(SIZE).expect("a size");
        check(format.command().arg(disk.image()));
        unshare(CloneFlags::CLONE_NEWNS).expect("mounts of its own");
        let flags = MsFlags::MS_SLAVE | MsFlags::MS_REC;
        mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).expect("nobody else's");
        disk.mount();
        if !IS_USED.swap(true, Ordering::SeqCst) {
            let set = tempfile::env::override_temp_dir(Path::new(MOUNT_POINT));
            set.expect("no other directory of temporary files");
        }
        disk
    }

    /// Switches the power off and on, so that unsynced data is lost. All writers must have ended.
    #[track_caller]
    pub fn lose_power(&self) {
        let root = File::open(MOUNT_POINT).expect("the mount point");
        let how = WITHOUT_JOURNAL;
        // SAFETY: the pointer is valid until the call returns, and its target has the size that the call reads.
        let done = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN, &raw const how) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
        drop(root);
        // a killed process may not have ended yet
        wait::until("nobody has anything open on the disk", || {
            umount2(MOUNT_POINT, MntFlags::empty()).is_ok()
        });
        self.mount();
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    #[track_caller]
    fn mount(&self) {
        let mut command = Command::new("mount");
        check(
            command
                .args(["-o", "loop"])
                .arg(self.image())
                .arg(MOUNT_POINT),
        );
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(MOUNT_POINT, MntFlags::MNT_DETACH);
    }
}

/// Syncs the files that a test has prepared, if tests of this program use a disk.
#[track_caller]
pub fn settle() {
    if IS_USED.load(Ordering::SeqCst) {
        let root = File::open(MOUNT_POINT).expect("the mount point");
        syncfs(&root).expect("a sync");
    }
}
