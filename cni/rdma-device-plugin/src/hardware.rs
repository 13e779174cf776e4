//! The node's hardware, looked at from asynchronous code.

use rdma_netns::{Inventory, Linux};
use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};
use tokio::task::JoinError;

/// Where the hardware is seen.
#[derive(Clone, Debug)]
pub struct Hardware {
    sysfs: PathBuf,
    dev: PathBuf,
}

/// The hardware could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum HardwareError {
    /// sysfs could not be read.
    #[error(transparent)]
    Unreadable(#[from] rdma_netns::ObserveError),
    /// The thread that looked did not end well.
    #[error("looking at the hardware did not come to its end: {0}")]
    Stopped(#[from] JoinError),
}

impl Hardware {
    /// As `sysfs` and `dev` show it.
    pub fn new(sysfs: &Path, dev: &Path) -> Self {
        Self {
            sysfs: sysfs.to_owned(),
            dev: dev.to_owned(),
        }
    }

    /// All of it, now.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub fn look(&self) -> Result<Inventory, HardwareError> {
        Ok(Linux::with_roots(&self.sysfs, &self.dev).inventory()?)
    }

    /// Which devices there are, and not how they are: no device's firmware is waited for.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub fn presence(&self) -> Result<Inventory, HardwareError> {
        Ok(Linux::with_roots(&self.sysfs, &self.dev).inventory_without_ports()?)
    }

    /// The same, on a thread that may wait for the disk.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub async fn presence_aside(&self) -> Result<Inventory, HardwareError> {
        let hardware = self.clone();
        tokio::task::spawn_blocking(move || hardware.presence()).await?
    }

    /// All of it, on a thread that may wait for the disk.
    ///
    /// # Errors
    /// sysfs cannot be read.
    pub async fn look_aside(&self) -> Result<Inventory, HardwareError> {
        let hardware = self.clone();
        tokio::task::spawn_blocking(move || hardware.look()).await?
    }

    /// Whether the character device `name` has the numbers `major`, `minor` in `/dev/infiniband`.
    pub fn has_node(&self, name: &str, major: u32, minor: u32) -> bool {
        fs::metadata(self.dev.join("infiniband").join(name)).is_ok_and(|found| {
            found.file_type().is_char_device()
                && nix::sys::stat::major(found.rdev()) == u64::from(major)
                && nix::sys::stat::minor(found.rdev()) == u64::from(minor)
        })
    }
}
