// SPDX-License-Identifier: Apache-2.0
//! What one Allocate gave for an id: the chain attaches just that, and before a container starts
//! the daemon looks whether its character devices still are those.
//!
//! A grant outlasts the daemon, and the node's boot too: kubelet does not allocate again what it
//! has in its own checkpoint. The next grant of the same id takes its place.

use crate::{CharNode, FileError, Sharing, file};
use rdma_netns::DeviceAddress;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The format that this version writes. A field that a later one adds is passed over.
pub const FORMAT: u32 = 1;

/// The grants of a node.
#[derive(Clone, Debug)]
pub struct Grants {
    root: PathBuf,
}

/// What an id was given for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// [`FORMAT`]
    pub format: u32,
    /// The resource's name.
    pub resource: String,
    /// Kubelet's id.
    pub id: String,
    /// Whether the devices are one pod's alone.
    pub sharing: Sharing,
    /// Whether the container gets them by CDI names; else by path.
    pub cdi: bool,
    /// Whether `rdma-cni` was in the node's chain then: the pod's network is to be made with it.
    #[serde(default)]
    pub chained: bool,
    /// Whether the container was promised an entry with its pod's rails ([`container`](crate::container)).
    #[serde(default)]
    pub told: bool,
    /// The devices.
    pub devices: Vec<GrantedDevice>,
}

/// One device of a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrantedDevice {
    /// Its PCI function or auxiliary device.
    pub address: DeviceAddress,
    /// Its RDMA device's name then.
    pub rdma: String,
    /// The netdev that pods are attached to, if the resource says which: the device's own, its bond, or a VLAN of
    /// that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The character devices that were given.
    pub char_devices: Vec<CharNode>,
}

impl Grant {
    /// Whether it is of one of these devices.
    pub fn has_any(&self, addresses: &BTreeSet<&DeviceAddress>) -> bool {
        let mut devices = self.devices.iter();
        devices.any(|device| addresses.contains(&device.address))
    }
}

impl Grants {
    /// Those in the state directory.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            root: state_dir.join("granted"),
        }
    }

    /// The grant of `id`; none: it was never given.
    pub fn read(&self, resource: &str, id: &str) -> Result<Option<Grant>, FileError> {
        let grant: Option<Grant> = file::read(&self.path(resource, id))?;
        Ok(grant.filter(|grant| grant.resource == resource && grant.id == id))
    }

    /// All that there are, those that cannot be read left out.
    pub fn all(&self) -> Vec<Grant> {
        let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
        let files = entries(&self.root).flat_map(|it| entries(&it.path()));
        files
            .filter_map(|entry| file::read(&entry.path()).ok().flatten())
            .collect()
    }

    /// Records it. The file's time is this one, also if it says the same as before.
    pub fn write(&self, grant: &Grant) -> Result<(), FileError> {
        let path = self.path(&grant.resource, &grant.id);
        if file::replace(&path, grant, 0o600)? {
            return Ok(());
        }
        let now = || {
            File::options()
                .append(true)
                .open(&path)?
                .set_modified(SystemTime::now())
        };
        now().map_err(|source| FileError::new("write", &path, source))
    }

    /// When `id` was given last; none: that is not known.
    pub fn given_at(&self, resource: &str, id: &str) -> Option<SystemTime> {
        let found = fs::metadata(self.path(resource, id));
        found.and_then(|it| it.modified()).ok()
    }

    fn path(&self, resource: &str, id: &str) -> PathBuf {
        let id = format!("{}.json", file::file_name(id));
        self.root.join(file::file_name(resource)).join(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(resource: &str, id: &str) -> Grant {
        Grant {
            format: FORMAT,
            resource: resource.into(),
            id: id.into(),
            sharing: Sharing::Shared,
            cdi: false,
            chained: false,
            told: false,
            devices: vec![GrantedDevice {
                address: "0000:3b:00.0".to_owned().try_into().expect("an address"),
                rdma: "mlx5_0".into(),
                parent: None,
                char_devices: vec![CharNode {
                    name: "uverbs0".into(),
                    major: 231,
                    minor: 192,
                }],
            }],
        }
    }

    #[test]
    fn the_last_one_counts() {
        let directory = tempfile::tempdir().expect("a directory");
        let grants = Grants::new(directory.path());
        assert_eq!(grants.read("rdma/hca", "17").expect("read"), None);
        let mut grant = grant("rdma/hca", "17");
        grants.write(&grant).expect("written");
        grant.devices[0].rdma = "mlx5_1".into();
        grants.write(&grant).expect("written");
        let at = grants.given_at("rdma/hca", "17").expect("a time");
        std::thread::sleep(std::time::Duration::from_millis(20));
        grants.write(&grant).expect("written");
        assert!(grants.given_at("rdma/hca", "17").expect("a time") > at);
        assert_eq!(grants.read("rdma/hca", "17").expect("read"), Some(grant));
        assert_eq!(grants.read("rdma/hca", "1").expect("read"), None);
    }

    #[test]
    fn no_name_leads_elsewhere() {
        let directory = tempfile::tempdir().expect("a directory");
        let state = directory.path().join("state");
        let grants = Grants::new(&state);
        for id in ["erdma_0/3", "../../3", "..", "/etc/3"] {
            grants.write(&grant("aliyun/erdma", id)).expect("written");
            let read = grants.read("aliyun/erdma", id).expect("read");
            assert_eq!(read.map(|grant| grant.id), Some(id.to_owned()));
        }
        let entries = std::fs::read_dir(directory.path()).expect("a directory");
        assert_eq!(entries.count(), 1, "something was written beside the state");
        // the same file name, another id
        assert_eq!(
            grants.read("aliyun/erdma", "erdma_0@3").expect("read"),
            None
        );
    }
}
