// SPDX-License-Identifier: Apache-2.0
//! `--release`: restores the eRDMA NICs that the daemon set up, and removes the daemon's device information and, with
//! `--node-features`, its labels.

use crate::{cli::Arguments, device_info, node_features};
use ::erdma::bring_up::release;
use anyhow::{Result, bail};
use rdma_netns::Linux;
use std::path::Path;

/// Restores the NICs, removes labels and device information, and prints the results.
///
/// # Errors
/// A NIC could not be restored, or a file could not be removed.
pub fn run(arguments: &Arguments) -> Result<()> {
    let kernel = Linux::with_roots(&arguments.sysfs, &arguments.dev);
    let released = release(&kernel, &arguments.state_dir)?;
    if released.is_empty() {
        println!("the daemon set up no NIC: there is nothing to restore");
    }
    for nic in &released {
        println!("{nic}");
    }
    remove_files(arguments.node_features.as_deref(), &arguments.state_dir)?;
    match released.iter().filter(|nic| !nic.is_complete()).count() {
        0 => Ok(()),
        left => bail!("{left} NICs are not restored; run --release again"),
    }
}

/// Removes labels and device information, and prints the removed files.
pub(crate) fn remove_files(node_features: Option<&Path>, state_dir: &Path) -> Result<()> {
    if let Some(directory) = node_features
        && let Some(file) = node_features::remove(directory)?
    {
        println!("{file:?}: removed");
    }
    let files = device_info::remove(state_dir)?;
    if files > 0 {
        println!("device information: {files} files removed");
    }
    Ok(())
}
