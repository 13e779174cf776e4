// SPDX-License-Identifier: Apache-2.0
//! `--release`: restores the eRDMA NICs that the daemon set up, and removes its labels and device information.

use crate::{cli::Arguments, device_info, node_features};
use ::erdma::bring_up::{ReleaseError, release};
use rdma_netns::Linux;
use rdma_resources::FileError;

/// Reason why the release is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum Unreleased {
    /// Nothing was released.
    #[error(transparent)]
    All(#[from] ReleaseError),
    /// A file with labels for node-feature-discovery, or with device information for Multus, cannot be removed.
    #[error(transparent)]
    File(#[from] FileError),
    /// Some NICs were not restored; the output names them.
    #[error("{0} NICs are not restored; run --release again")]
    Some(usize),
}

/// Restores the NICs, and prints the result for each.
///
/// # Errors
/// The release is incomplete.
pub fn run(arguments: &Arguments) -> Result<(), Unreleased> {
    let kernel = Linux::with_roots(&arguments.sysfs, &arguments.dev);
    let released = release(&kernel, &arguments.state_dir)?;
    if released.is_empty() {
        println!("the daemon set up no NIC: there is nothing to restore");
    }
    for nic in &released {
        println!("{nic}");
    }
    if let Some(directory) = &arguments.node_features
        && let Some(file) = node_features::remove(directory)?
    {
        println!("{file:?}: removed");
    }
    print_removed(device_info::remove(&arguments.state_dir)?);
    match released.iter().filter(|nic| !nic.is_complete()).count() {
        0 => Ok(()),
        left => Err(Unreleased::Some(left)),
    }
}

/// Prints the number of removed files of device information.
pub(crate) fn print_removed(files: usize) {
    if files > 0 {
        println!("device information: {files} files removed");
    }
}
