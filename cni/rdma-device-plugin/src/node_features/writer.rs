// SPDX-License-Identifier: Apache-2.0
//! Keeps the label file up to date.

use super::{Labels, read, write};
use crate::dra::pool::Netdevs;
use node_state::{log_once::LogOnce, node::Node};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::watch;

/// Delay after a failed write.
const AGAIN: Duration = Duration::from_secs(30);

/// Writes the file when the labels change. Only the leader runs a writer.
#[derive(Debug)]
pub struct Writer {
    directory: PathBuf,
    node: watch::Receiver<Arc<Node>>,
    netdevs: Netdevs,
    /// Labels in the file; `None`: the daemon has not written the file yet.
    written: Option<Labels>,
    reported: LogOnce,
}

impl Writer {
    /// Returns a writer of the labels of `node` into `directory`.
    pub fn new(directory: PathBuf, node: watch::Receiver<Arc<Node>>) -> Self {
        Self {
            directory,
            node,
            netdevs: Netdevs::default(),
            written: None,
            reported: LogOnce::default(),
        }
    }

    /// Runs until the sender of `node` is dropped.
    pub async fn run(mut self) {
        loop {
            let is_written = self.follow().await;
            let changed = self.node.changed();
            let changed = match is_written {
                true => changed.await,
                false => tokio::time::timeout(AGAIN, changed).await.unwrap_or(Ok(())),
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// Writes the present labels. Returns true if the file is up to date.
    async fn follow(&mut self) -> bool {
        let node = self.node.borrow_and_update().clone();
        let before = match &self.written {
            Some(labels) => labels.clone(),
            None => read(&self.directory),
        };
        let labels = Labels::of(&node, &mut self.netdevs, &before);
        if self.written.as_ref() == Some(&labels) {
            return true;
        }
        let (directory, new) = (self.directory.clone(), labels.clone());
        let written = tokio::task::spawn_blocking(move || write(&directory, &new)).await;
        let failed = match written {
            Ok(Ok(is_news)) => {
                if is_news {
                    log::info!(
                        "labels for node-feature-discovery are in {:?}",
                        self.directory
                    );
                }
                self.written = Some(labels);
                self.reported.ends();
                return true;
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => format!("writing labels failed: {error}"),
        };
        if self.reported.is_news(&failed) {
            log::error!("{failed}; trying again every {AGAIN:?}");
        }
        false
    }
}
