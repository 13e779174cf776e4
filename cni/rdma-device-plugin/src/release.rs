// SPDX-License-Identifier: Apache-2.0
//! `--release`: what the daemon set up of eRDMA NICs goes, and the labels and device information that it wrote.

use crate::{cli::Arguments, device_info, node_features};
use ::erdma::bring_up::{ReleaseError, release};
use rdma_netns::Linux;
use rdma_resources::FileError;

/// Not all of it could be taken back.
#[derive(Debug, thiserror::Error)]
pub enum Unreleased {
    /// None of it.
    #[error(transparent)]
    All(#[from] ReleaseError),
    /// A file with labels for node-feature-discovery, or with device information for Multus, cannot be removed.
    #[error(transparent)]
    File(#[from] FileError),
    /// Some of it; what was printed says which.
    #[error("{0} NICs are not as they were; --release can be run again")]
    Some(usize),
}

/// Takes it back, and prints what became of each NIC.
///
/// # Errors
/// Something is left.
pub fn run(arguments: &Arguments) -> Result<(), Unreleased> {
    let kernel = Linux::with_roots(&arguments.sysfs, &arguments.dev);
    let released = release(&kernel, &arguments.state_dir)?;
    if released.is_empty() {
        println!("no NIC was set up by the daemon: there is nothing to take back");
    }
    for nic in &released {
        println!("{nic}");
    }
    if let Some(directory) = &arguments.node_features
        && let Some(file) = node_features::remove(directory)?
    {
        println!("{file:?}: removed");
    }
    tell_removed(device_info::remove(&arguments.state_dir)?);
    match released.iter().filter(|nic| !nic.is_complete()).count() {
        0 => Ok(()),
        left => Err(Unreleased::Some(left)),
    }
}

/// What is printed of so many files of device information.
pub(crate) fn tell_removed(files: usize) {
    if files > 0 {
        println!("device information: {files} files removed");
    }
}
