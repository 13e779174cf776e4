// SPDX-License-Identifier: Apache-2.0
//! Keeps the file as the node is.

use super::{Labels, read, write};
use crate::{dra::pool::Netdevs, node::Node, said::Said};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::watch;

/// A file that could not be written is tried again after that.
const AGAIN: Duration = Duration::from_secs(30);

/// Writes the file when the labels are others. The daemon that leads has one.
#[derive(Debug)]
pub struct Writer {
    directory: PathBuf,
    node: watch::Receiver<Arc<Node>>,
    netdevs: Netdevs,
    /// What the file has; none: it was not written yet.
    written: Option<Labels>,
    /// What went wrong the last time: it is said once.
    told: Said,
}

impl Writer {
    /// Into `directory`, what `node` is at each time.
    pub fn new(directory: PathBuf, node: watch::Receiver<Arc<Node>>) -> Self {
        Self {
            directory,
            node,
            netdevs: Netdevs::default(),
            written: None,
            told: Said::default(),
        }
    }

    /// Until the node's sender goes.
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

    /// Whether the file is as it should be.
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
                self.told.ends();
                return true;
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => format!("writing labels did not come to its end: {error}"),
        };
        if self.told.is_news(&failed) {
            log::error!("{failed}; tried again every {AGAIN:?}");
        }
        false
    }
}
