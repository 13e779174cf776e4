// SPDX-License-Identifier: Apache-2.0
//! Observes changes of the configuration file.

use crate::{node::Signal, watch::Watch};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::sync::mpsc;

/// Delay between a change of the file and the signal, because an editor writes a file in several steps.
const SETTLED: Duration = Duration::from_millis(100);

/// The configuration file, whose changes [`notify`](Self::notify) reports.
#[derive(Debug)]
pub struct Watched {
    path: PathBuf,
    watch: Watch,
    last: Option<Fingerprint>,
}

/// Identity of the file's content: path without symbolic links; device, inode and size; modification time in seconds
/// and nanoseconds.
type Fingerprint = (PathBuf, [u64; 3], [i64; 2]);

impl Watched {
    /// Watches the file, its directory, and the directory of a symbolic link's target. Kubelet updates a mounted
    /// ConfigMap by replacing a symbolic link in the directory.
    pub fn new(path: &Path) -> Self {
        let mut watched = vec![path.to_owned()];
        watched.extend(path.parent().map(Path::to_owned));
        let real = path.canonicalize().ok();
        watched.extend(real.and_then(|real| real.parent().map(Path::to_owned)));
        Self {
            path: path.to_owned(),
            watch: Watch::new(watched),
            last: fingerprint(path),
        }
    }

    /// Sends [`Signal::Configuration`] after changes of the file. Ignores changes of other files in the directory. Ends
    /// when the receiver is dropped.
    pub async fn notify(mut self, signals: mpsc::Sender<Signal>) {
        loop {
            self.watch.changed().await;
            if fingerprint(&self.path) == self.last {
                continue;
            }
            tokio::time::sleep(SETTLED).await;
            self.last = fingerprint(&self.path);
            if signals.send(Signal::Configuration).await.is_err() {
                return;
            }
        }
    }
}

fn fingerprint(path: &Path) -> Option<Fingerprint> {
    let real = path.canonicalize().ok()?;
    let found = fs::metadata(&real).ok()?;
    let numbers = [found.dev(), found.ino(), found.len()];
    Some((real, numbers, [found.mtime(), found.mtime_nsec()]))
}
