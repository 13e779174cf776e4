// SPDX-License-Identifier: Apache-2.0
//! Writes files for `rdma-cni`, the container runtime, Multus, `doctor` and the next daemon: the devices of each
//! resource's ids, CDI entries, device information, and the NICs' switches.
//!
//! The files stay when the daemon ends, because kubelet does not call Allocate again for a restarted container. Without
//! a daemon, the runtime still finds the container's CDI names, and `rdma-cni` still finds the devices of its ids.

use crate::{cli::Arguments, device_info};
use node_state::{hardware::Hardware, log_once::LogOnce, node::Node};
use rdma_netns::Inventory;
use rdma_resources::{
    Cdi, FileError, Grant, Grants, Published, limited::boot_id, published::FORMAT,
};
use std::{path::PathBuf, sync::Arc};

/// Writes the files of the node.
#[derive(Clone, Debug)]
pub struct Publisher {
    state_dir: PathBuf,
    cdi_dir: PathBuf,
    /// Directory of device information; `None`: the daemon writes none.
    device_info: Option<PathBuf>,
    hardware: Hardware,
    /// Last failure for each kind of file, which the daemon does not log again.
    reported: [LogOnce; 4],
}

impl Publisher {
    /// Returns a publisher that writes to the state directory of `rdma-cni`, the runtime's CDI directory, and Multus'
    /// directory for device information.
    pub fn new(arguments: &Arguments, hardware: Hardware) -> Self {
        Self {
            state_dir: arguments.state_dir.clone(),
            cdi_dir: arguments.cdi_dir.clone(),
            device_info: arguments.device_info.clone(),
            hardware,
            reported: Default::default(),
        }
    }

    /// Writes changed files, and logs failures. Returns true if all files are up to date.
    pub async fn publish(&mut self, node: Arc<Node>) -> bool {
        let here = self.clone();
        // write on another thread, because `rdma-cni` may have locked the CDI file while it moves a device
        let written = tokio::task::spawn_blocking(move || {
            let written = [
                here.resources(&node),
                here.cdi(&node),
                here.device_info(&node),
                node.switches.write(&here.state_dir).map(drop),
            ];
            written.map(Result::err)
        });
        match written.await {
            Ok(failed) => {
                let is_written = failed.iter().all(Option::is_none);
                self.report(failed);
                is_written
            }
            Err(error) => {
                log::error!("publishing failed: {error}");
                false
            }
        }
    }

    fn resources(&self, node: &Node) -> Result<(), FileError> {
        let offers = node.offers.iter();
        let published = Published {
            format: FORMAT,
            cdi_dir: self.has_entries(node).then(|| self.cdi_dir.clone()),
            resources: offers
                .map(|offer| (offer.name.to_string(), offer.published()))
                .collect(),
            chain_names_resources: node
                .conf
                .chain
                .as_ref()
                .is_some_and(|it| it.names_resources),
            boot_id: Some(boot_id()?),
            physical_functions: offer::physical_functions(&node.offers, &node.inventory),
        };
        if published.write(&self.state_dir)? {
            log::info!(
                "{} resources published in {:?}",
                node.offers.len(),
                self.state_dir
            );
        }
        Ok(())
    }

    fn cdi(&self, node: &Node) -> Result<(), FileError> {
        if !self.has_entries(node) {
            return Ok(());
        }
        let entries = |inventory: &Inventory| {
            let mut entries = offer::cdi_entries(&node.offers, inventory);
            offer::add_granted(&mut entries, &self.grants(), inventory);
            entries
        };
        // read the device numbers while the file is locked. If this fails, use the last known numbers.
        let written = self.entries().write(|| match self.hardware.presence() {
            Ok(now) => entries(&now),
            Err(error) => {
                log::warn!("CDI entries may be outdated: {error}");
                entries(&node.inventory)
            }
        })?;
        if written {
            log::info!("CDI entries written in {:?}", self.cdi_dir);
        }
        Ok(())
    }

    fn device_info(&self, node: &Node) -> Result<(), FileError> {
        let Some(directory) = &self.device_info else {
            return Ok(());
        };
        let files = device_info::files(&node.offers, &node.inventory);
        if device_info::write(directory, &files, &self.state_dir)? {
            log::info!(
                "device information is in {directory:?}, {} files",
                files.len()
            );
        }
        Ok(())
    }

    fn entries(&self) -> Cdi {
        Cdi::new(&self.cdi_dir, &self.state_dir)
    }

    fn grants(&self) -> Vec<Grant> {
        Grants::new(&self.state_dir).all()
    }

    /// Returns true if containers get devices by CDI names, or got them before `cdi` was switched off: a restarted
    /// container uses its old CDI names. After a reboot only the grants show these names, because the CDI directory is
    /// empty. Without `cdi` the daemon's container may lack the CDI directory.
    fn has_entries(&self, node: &Node) -> bool {
        let has_names = || self.cdi_dir.is_dir() && self.grants().iter().any(|it| it.cdi);
        node.conf.cdi || self.entries().is_there() || has_names()
    }

    fn report(&mut self, failed: [Option<FileError>; 4]) {
        for (reported, failed) in self.reported.iter_mut().zip(failed) {
            match failed.map(|error| error.to_string()) {
                Some(error) if reported.is_news(&error) => log::error!("{error}; trying again"),
                None if reported.ends() => log::info!("a file of the node is published again"),
                _ => {}
            }
        }
    }
}
