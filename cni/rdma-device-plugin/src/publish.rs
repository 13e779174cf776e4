// SPDX-License-Identifier: Apache-2.0
//! What the chain and the container runtime are told in files: which devices a resource's ids
//! stand for, CDI entries, and what Multus tells of exclusive devices.
//!
//! The files stay when the daemon ends. A container that is started again is not allocated
//! again: the runtime looks its CDI names up without the daemon, and the chain its ids.

use crate::{cli::Arguments, device_info, hardware::Hardware, node::Node, offer};
use rdma_resources::{Cdi, FileError, Published, published::FORMAT};
use std::{path::PathBuf, sync::Arc};

/// Where it is written.
#[derive(Clone, Debug)]
pub struct Publisher {
    state_dir: PathBuf,
    cdi_dir: PathBuf,
    /// None: nothing is written for Multus.
    device_info: Option<PathBuf>,
    hardware: Hardware,
    /// What went wrong the last time: it is said once.
    told: [Option<String>; 3],
}

impl Publisher {
    /// Into the state directory of `rdma-cni`, the runtime's CDI directory, and Multus' for device information.
    pub fn new(arguments: &Arguments, hardware: Hardware) -> Self {
        Self {
            state_dir: arguments.state_dir.clone(),
            cdi_dir: arguments.cdi_dir.clone(),
            device_info: arguments.device_info.clone(),
            hardware,
            told: [None, None, None],
        }
    }

    /// Writes what is different. What fails is said. Whether all is written.
    pub async fn publish(&mut self, node: Arc<Node>) -> bool {
        let here = self.clone();
        // a move of rdma-cni can hold the lock of the CDI file for a moment
        let written = tokio::task::spawn_blocking(move || {
            let written = [
                here.resources(&node),
                here.cdi(&node),
                here.device_info(&node),
            ];
            written.map(Result::err)
        });
        match written.await {
            Ok(failed) => {
                let is_written = failed.iter().all(Option::is_none);
                self.tell(failed);
                is_written
            }
            Err(error) => {
                log::error!("publishing did not come to its end: {error}");
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
        // the numbers are looked up under the file's lock; without a look the last ones count
        let written = self.entries().write(|| match self.hardware.presence() {
            Ok(now) => offer::cdi_entries(&node.offers, &now),
            Err(error) => {
                log::warn!("CDI entries may be old: {error}");
                offer::cdi_entries(&node.offers, &node.inventory)
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
        let files = device_info::files(node.advertised(), &node.inventory);
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

    /// Whether containers get devices by CDI names, or got them so before `cdi` was turned off:
    /// they are started again by the same names.
    fn has_entries(&self, node: &Node) -> bool {
        node.conf.cdi || self.entries().is_there()
    }

    fn tell(&mut self, failed: [Option<FileError>; 3]) {
        for (told, failed) in self.told.iter_mut().zip(failed) {
            let failed = failed.map(|error| error.to_string());
            match &failed {
                Some(error) if *told != failed => {
                    log::error!("{error}; tried again");
                }
                None if told.is_some() => log::info!("published again"),
                _ => {}
            }
            *told = failed;
        }
    }
}
