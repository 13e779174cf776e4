// SPDX-License-Identifier: Apache-2.0
//! The watch's file for the daemon of its node.

use super::RailState;
use rdma_netns::{Kernel, Linux, linux::seconds_since_boot};
use rdma_resources::{FileError, file};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Directory below the state directory, the only one of the node that the watch's container may write.
const DIRECTORY: &str = "fabric";
/// Longest time until a report becomes void, seconds: the longest interval, and 180.
const LONGEST: u64 = 3600 + 180;

/// States of a node's rails, which are void some time after the watch's end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Boot of the node.
    boot_id: String,
    /// Time at which the report becomes void: seconds since the boot, which no change of the clock affects.
    until: u64,
    /// States of the rails.
    pub rails: Vec<RailState>,
}

impl Report {
    /// Returns a report on `rails` that becomes void after `patience`.
    pub fn new(rails: Vec<RailState>, patience: Duration) -> Self {
        Self {
            boot_id: Linux::new().boot_id().unwrap_or_default(),
            until: seconds_since_boot().unwrap_or_default() + patience.as_secs(),
            rails,
        }
    }

    /// Reads the report in `state_dir`; one without rails if there is none, or if it is void.
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

    /// Removes the reports' directory.
    ///
    /// # Errors
    /// It cannot be removed.
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

/// Returns the file's path.
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
            asked: vec![],
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
        // no watch writes this
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
