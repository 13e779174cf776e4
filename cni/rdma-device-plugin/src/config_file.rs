// SPDX-License-Identifier: Apache-2.0
//! Hearing of a changed configuration file.

use crate::{node::Signal, watch::Watch};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::sync::mpsc;

/// How long after a change the file is read: an editor takes several steps.
const SETTLED: Duration = Duration::from_millis(100);

/// A file whose changes are heard of.
#[derive(Debug)]
pub struct Watched {
    path: PathBuf,
    watch: Watch,
    last: Option<Fingerprint>,
}

/// What differs when the file does.
type Fingerprint = (PathBuf, [u64; 3], [i64; 2]);

impl Watched {
    /// The file itself, its directory, and where it really is: a mounted ConfigMap changes by a
    /// symbolic link in the directory being exchanged for another.
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

    /// Sends a signal after each change. Other files' changes in the directory are none.
    pub async fn tell(mut self, signals: mpsc::Sender<Signal>) {
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
