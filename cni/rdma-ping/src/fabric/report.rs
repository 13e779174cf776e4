// SPDX-License-Identifier: Apache-2.0
//! Report of the fabric watch: a file from which the node's daemon reads the states of rails.

use super::RailState;
use rdma_netns::{Kernel, Linux, linux::seconds_since_boot};
use rdma_resources::{FileError, file};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Directory of the file below the state directory. The watch's container may write to no other directory
/// of the node.
const DIRECTORY: &str = "fabric";
/// Longest time until a report becomes void, in seconds: the longest interval plus 180 seconds.
const LONGEST: u64 = 3600 + 180;

/// States of a node's rails. A report becomes void some time after the watch that wrote it has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Boot id of the node.
    boot_id: String,
    /// Time when the report becomes void, in seconds since the boot. Changes of the clock do not affect this time.
    until: u64,
    /// States of the rails.
    pub rails: Vec<RailState>,
}

impl Report {
    /// Returns a report on `rails` that becomes void after `lifetime`.
    pub fn new(rails: Vec<RailState>, lifetime: Duration) -> Self {
        Self {
            boot_id: Linux::new().boot_id().unwrap_or_default(),
            until: seconds_since_boot().unwrap_or_default() + lifetime.as_secs(),
            rails,
        }
    }

    /// Reads the report in `state_dir`. Returns an empty report if there is no report of this boot, or if it is
    /// void.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(state_dir: &Path) -> Result<Self, FileError> {
        let report: Option<Self> = file::read(&path(state_dir))?;
        let now = seconds_since_boot().unwrap_or(u64::MAX);
        let boot_id = Linux::new().boot_id().unwrap_or_default();
        let left = |it: &Self| it.until.saturating_sub(now);
        let report = report.filter(|it| (1..=LONGEST).contains(&left(it)) && it.boot_id == boot_id);
        Ok(report.unwrap_or_default())
    }

    /// Writes the report in `state_dir`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, state_dir: &Path) -> Result<(), FileError> {
        file::replace(&path(state_dir), self, 0o644).map(drop)
    }

    /// Removes the directory of the report.
    ///
    /// # Errors
    /// The directory cannot be removed.
    pub fn remove(state_dir: &Path) -> Result<(), FileError> {
        let directory = state_dir.join(DIRECTORY);
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(FileError::new("remove", &directory, error))
            }
            _ => Ok(()),
        }
    }
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join(DIRECTORY).join("rails.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> Vec<RailState> {
        vec![RailState {
            device: "mlx5_0".to_owned(),
            is_unreachable: true,
            is_unhealthy: true,
            peers: 3,
            not_asked: None,
            requests: vec![],
        }]
    }

    #[test]
    fn a_report_is_void_after_its_time_and_after_a_boot() {
        let directory = tempfile::tempdir().expect("a directory");
        let read = || Report::read(directory.path()).expect("read").rails;
        assert_eq!(read(), []);
        let report = Report::new(states(), Duration::from_secs(600));
        report.write(directory.path()).expect("written");
        assert_eq!(read(), states());
        let over = Report::new(states(), Duration::ZERO);
        over.write(directory.path()).expect("written");
        assert_eq!(read(), []);
        // a report that never becomes void: no watch writes such a report
        let endless = Report {
            until: u64::MAX,
            ..report.clone()
        };
        endless.write(directory.path()).expect("written");
        assert_eq!(read(), []);
        let other = Report {
            boot_id: "of another boot".to_owned(),
            ..report
        };
        other.write(directory.path()).expect("written");
        assert_eq!(read(), []);
    }
}
