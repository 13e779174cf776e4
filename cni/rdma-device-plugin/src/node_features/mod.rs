// SPDX-License-Identifier: Apache-2.0
//! What the node has, as labels that node-feature-discovery puts on it: one file among those that NFD's source `local`
//! reads (`docs/usage/customization-guide.md` of kubernetes-sigs/node-feature-discovery, "Local feature source").
//!
//! The file has no `+expiry-time`. What a node has does not pass with time, a daemon that is away for an hour has lost
//! no NIC, and one at rest would have to wake to renew it. Whoever takes the daemon away takes the file with it.

mod labels;
mod writer;

pub use labels::{Labels, is_valid};
pub use writer::Writer;

use cni_protocol::state_file;
use rdma_resources::{FileError, file};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The file's name.
const FILE: &str = "rdma-device-plugin";
/// Its name until it is whole: NFD reads no file whose name begins with a dot.
const UNFINISHED: &str = ".rdma-device-plugin";

/// Writes `labels` into `directory`, unless they are there already. Whether they were not.
fn write(directory: &Path, labels: &Labels) -> Result<bool, FileError> {
    let (file, unfinished) = (directory.join(FILE), directory.join(UNFINISHED));
    let text = labels.to_string();
    if fs::read_to_string(&file).is_ok_and(|present| present == text) {
        return Ok(false);
    }
    let write = || {
        fs::create_dir_all(directory)?;
        let new = state_file::renew(&unfinished, 0o644)?;
        state_file::finish(&new, &unfinished, text.as_bytes(), &file)
    };
    write().map_err(|source| {
        let _ = fs::remove_file(&unfinished);
        FileError::new("write", &file, source)
    })?;
    Ok(true)
}

/// The labels that the file in `directory` has; none, where there is none.
fn read(directory: &Path) -> Labels {
    let text = fs::read_to_string(directory.join(FILE));
    text.map(|text| Labels::parse(&text)).unwrap_or_default()
}

/// Whether there is a file of ours in `directory`.
pub fn is_there(directory: &Path) -> bool {
    directory.join(FILE).exists()
}

/// Takes the file in `directory` away, and with it what a daemon that was killed left of another one. The file, if
/// it was there.
///
/// # Errors
/// It stays.
pub fn remove(directory: &Path) -> Result<Option<PathBuf>, FileError> {
    file::remove(&directory.join(UNFINISHED))?;
    let file = directory.join(FILE);
    Ok(file::remove(&file)?.then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_replaced_as_a_whole_and_goes_without_a_trace() {
        let directory = tempfile::tempdir().expect("a directory");
        let features = directory.path().join("features.d");
        let labels = Labels::parse("feature.node.kubernetes.io/rdma-nics.count=8\n");
        // as a killed one left it
        fs::create_dir(&features).expect("made");
        fs::write(features.join(UNFINISHED), "x".repeat(1000)).expect("written");
        assert!(write(&features, &labels).expect("written"));
        assert!(!write(&features, &labels).expect("it is there"));
        assert_eq!(read(&features), labels);
        fs::write(features.join("another"), "a.example/b=c\n").expect("written");
        let removed = remove(&features).expect("removed");
        assert_eq!(removed, Some(features.join(FILE)));
        assert_eq!(remove(&features).expect("nothing is there"), None);
        let left = fs::read_dir(&features).expect("a directory").count();
        assert_eq!(left, 1, "another program's stays");
    }
}
