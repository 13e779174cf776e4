// SPDX-License-Identifier: Apache-2.0
//! Writes features of the node into a file, from which node-feature-discovery (NFD) makes labels of the node. NFD's
//! source `local` reads the file (`docs/usage/customization-guide.md` of kubernetes-sigs/node-feature-discovery, "Local
//! feature source").
//!
//! The features do not expire (the file has no `+expiry-time`): the NICs also exist while no daemon runs, and renewals
//! would wake an idle daemon. With `--node-features`, `uninstall` and `--release` remove the file.

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

const FILE: &str = "rdma-device-plugin";
/// File name of a file that is still being written. NFD ignores files whose names begin with a dot.
const UNFINISHED: &str = ".rdma-device-plugin";

/// Writes `labels` into the file in `directory` if its content differs. Returns true if the file changed.
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

/// Reads the labels of the file in `directory`. Returns no labels if the file cannot be read.
fn read(directory: &Path) -> Labels {
    let text = fs::read_to_string(directory.join(FILE));
    text.map(|text| Labels::parse(&text)).unwrap_or_default()
}

/// Returns true if `directory` has the daemon's file.
pub fn is_there(directory: &Path) -> bool {
    directory.join(FILE).exists()
}

/// Removes the file in `directory`, and the unfinished file of a killed daemon. Returns the path if the file existed.
///
/// # Errors
/// The file cannot be removed.
pub fn remove(directory: &Path) -> Result<Option<PathBuf>, FileError> {
    file::remove(&directory.join(UNFINISHED))?;
    let file = directory.join(FILE);
    Ok(file::remove(&file)?.then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_replaced_atomically_and_removed_completely() {
        let directory = tempfile::tempdir().expect("a directory");
        let features = directory.path().join("features.d");
        let labels = Labels::parse("feature.node.kubernetes.io/rdma-nics.count=8\n");
        // the unfinished file of a daemon that was killed during a write
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
