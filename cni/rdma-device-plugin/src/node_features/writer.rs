// SPDX-License-Identifier: Apache-2.0
//! Keeps the label file up to date.

use super::{Labels, read, write};
use crate::{
    dra::pool::Netdevs,
    retry::{REST, Retry},
};
use anyhow::{Result, anyhow};
use node_state::node::Node;
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::watch;

/// Writes the file when the labels change. Only the leader runs a writer.
#[derive(Debug)]
pub struct Writer {
    directory: PathBuf,
    node: watch::Receiver<Arc<Node>>,
    netdevs: Netdevs,
    /// Labels in the file; `None`: the daemon has not written the file yet.
    written: Option<Labels>,
    retry: Retry,
}

impl Writer {
    /// Returns a writer of the labels of `node` into `directory`.
    pub fn new(directory: PathBuf, node: watch::Receiver<Arc<Node>>) -> Self {
        Self {
            directory,
            node,
            netdevs: Netdevs::default(),
            written: None,
            retry: Retry::default(),
        }
    }

    /// Runs until the sender of `node` is dropped.
    pub async fn run(mut self) {
        loop {
            let written = self.follow().await.map(|()| REST);
            let log = |line: &str| log::error!("{line}; trying again");
            let rested = self
                .retry
                .rests(&mut self.node, written, Duration::ZERO, log);
            if !rested.await {
                return;
            }
        }
    }

    /// Writes the present labels, if the file does not have them.
    async fn follow(&mut self) -> Result<()> {
        let node = self.node.borrow_and_update().clone();
        let before = match &self.written {
            Some(labels) => labels.clone(),
            None => read(&self.directory),
        };
        let labels = Labels::of(&node, &mut self.netdevs, &before);
        if self.written.as_ref() == Some(&labels) {
            return Ok(());
        }
        let (directory, new) = (self.directory.clone(), labels.clone());
        let written = tokio::task::spawn_blocking(move || write(&directory, &new)).await;
        if written.map_err(|error| anyhow!("writing labels failed: {error}"))?? {
            log::info!(
                "labels for node-feature-discovery are in {:?}",
                self.directory
            );
        }
        self.written = Some(labels);
        Ok(())
    }
}
