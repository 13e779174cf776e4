// SPDX-License-Identifier: Apache-2.0
//! Containers whose use of RDMA devices is limited. The hook writes a record of each, since only the hook knows the
//! container's cgroup: its path depends on kubelet's and the runtime's cgroup drivers.

use crate::{FileError, file};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Format that this version writes. A newer one is ignored.
pub const FORMAT: u32 = 1;

/// A limited container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitedContainer {
    /// Format, see [`FORMAT`].
    pub format: u32,
    /// Namespace of its pod.
    pub namespace: String,
    /// Name of its pod.
    pub pod: String,
    /// Name in the pod.
    pub container: String,
    /// Path of its cgroup below the root of the hierarchy.
    pub cgroup: PathBuf,
}

/// The limited containers of a node.
#[derive(Clone, Debug)]
pub struct LimitedContainers {
    root: PathBuf,
}

impl LimitedContainers {
    /// Returns the containers in the state directory.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            root: state_dir.join("limited"),
        }
    }

    /// Writes the record of the container with this id of the runtime. Removes records of containers whose cgroup is
    /// not in the hierarchy at `cgroups` any more.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn write(
        &self,
        id: &str,
        container: &LimitedContainer,
        cgroups: &Path,
    ) -> Result<(), FileError> {
        for (path, known) in self.records() {
            if !cgroups.join(known.cgroup).exists() {
                // the next container's hook tries again
                let _ = file::remove(&path);
            }
        }
        let path = self.root.join(format!("{}.json", file::file_name(id)));
        file::replace(&path, container, 0o600).map(drop)
    }

    /// Returns all containers with readable records, also of some that have ended.
    pub fn all(&self) -> Vec<LimitedContainer> {
        self.records().map(|(_, container)| container).collect()
    }

    fn records(&self) -> impl Iterator<Item = (PathBuf, LimitedContainer)> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        entries.filter_map(|entry| {
            let path = entry.path();
            let container = file::read_record(&path, FORMAT).ok().flatten()?;
            Some((path, container))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_go_with_their_cgroups() {
        let root = tempfile::tempdir().expect("a directory");
        let containers = LimitedContainers::new(&root.path().join("state"));
        let cgroups = root.path().join("cgroup");
        let write = |id: &str| {
            let container = LimitedContainer {
                format: FORMAT,
                namespace: "default".into(),
                pod: "a".into(),
                container: id.into(),
                cgroup: Path::new("kubepods").join(id),
            };
            fs::create_dir_all(cgroups.join(&container.cgroup)).expect("made");
            let written = containers.write(id, &container, &cgroups);
            written.expect("written");
            container
        };
        assert_eq!(containers.all(), []);
        let (one, two) = (write("one"), write("two"));
        let mut all = containers.all();
        all.sort();
        assert_eq!(all, [one, two.clone()]);
        fs::remove_dir(cgroups.join("kubepods/one")).expect("removed");
        let three = write("three");
        let mut all = containers.all();
        all.sort();
        assert_eq!(all, [three, two]);
    }
}
