// SPDX-License-Identifier: Apache-2.0
//! Grants: the devices that Allocate granted for an id. `rdma-cni` attaches only these devices. Before a container
//! starts, the daemon checks that the container's devices are still as granted.
//!
//! A grant stays valid after the daemon ends and after a reboot, because kubelet does not call Allocate again for ids
//! in its checkpoint. The next grant of the same id replaces the grant.

use crate::{CharNode, ContainerLimits, FileError, Sharing, file};
use cni_protocol::state_file;
use rdma_netns::DeviceAddress;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Format that this version writes. A reader refuses a newer format ([`file::read_record`]), because a newer grant may
/// name another netdev.
pub const FORMAT: u32 = 2;

/// The grants of a node.
#[derive(Clone, Debug)]
pub struct Grants {
    root: PathBuf,
}

/// The devices that Allocate granted for an id, and how the container gets them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// Format of the grant ([`FORMAT`]).
    pub format: u32,
    /// Name of the resource.
    pub resource: String,
    /// Id that kubelet allocated.
    pub id: String,
    /// Number of pods that may use the devices: one or several.
    pub sharing: Sharing,
    /// True if the container gets the devices by CDI names, false if by path.
    pub cdi: bool,
    /// True if the node's chain contained `rdma-cni` at Allocate. Before a container with the id starts, the daemon
    /// then checks that `rdma-cni` was in the CNI list of the pod's network.
    #[serde(default)]
    pub chained: bool,
    /// True if Allocate promised the container a CDI entry with its pod's rails ([`container`](crate::container)).
    #[serde(default, rename = "told")]
    pub promises_rails: bool,
    /// Limits that Allocate promised the container in its CDI entry.
    #[serde(flatten)]
    pub limits: ContainerLimits,
    /// Granted devices.
    pub devices: Vec<GrantedDevice>,
}

/// A granted device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrantedDevice {
    /// PCI function or auxiliary device.
    pub address: DeviceAddress,
    /// Name of the RDMA device at Allocate.
    pub rdma: String,
    /// Parent of the pods' child netdevs, if the resource has `parents`: the device's own netdev, its bond, or a VLAN
    /// of the netdev or the bond.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Granted character devices.
    pub char_devices: Vec<CharNode>,
}

impl Grant {
    /// Returns true if the grant has one of the devices at `addresses`.
    pub fn has_any(&self, addresses: &BTreeSet<&DeviceAddress>) -> bool {
        let mut devices = self.devices.iter();
        devices.any(|device| addresses.contains(&device.address))
    }
}

impl Grants {
    /// Returns the grants in the state directory.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            root: state_dir.join("granted"),
        }
    }

    /// Reads the grant of `id`. Returns `None` if `id` has no grant.
    ///
    /// # Errors
    /// The grant cannot be read, or a newer daemon wrote it.
    pub fn read(&self, resource: &str, id: &str) -> Result<Option<Grant>, FileError> {
        let grant = file::read_record::<Grant>(&self.path(resource, id), FORMAT)?;
        Ok(grant.filter(|grant| grant.resource == resource && grant.id == id))
    }

    /// Returns all readable grants.
    pub fn all(&self) -> Vec<Grant> {
        let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
        let files = entries(&self.root).flat_map(|it| entries(&it.path()));
        files
            .filter_map(|entry| file::read_record(&entry.path(), FORMAT).ok().flatten())
            .collect()
    }

    /// Writes the grant. Sets the file's modification time to the present time, even if the content is unchanged.
    pub fn write(&self, grant: &Grant) -> Result<(), FileError> {
        let path = self.path(&grant.resource, &grant.id);
        if file::replace(&path, grant, 0o600)? {
            return Ok(());
        }
        let now = || {
            let file = state_file::open(&path)?;
            file.set_modified(SystemTime::now())
        };
        now().map_err(|source| FileError::new("write", &path, source))
    }

    /// Returns the time when `id` was last granted, or `None` if the time is unknown.
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
            promises_rails: false,
            limits: ContainerLimits::default(),
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

    /// A grant of a newer format can have other fields, which name another netdev.
    #[test]
    fn a_grant_of_a_newer_format_is_refused_as_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let grants = Grants::new(directory.path());
        grants.write(&grant("rdma/hca", "17")).expect("written");
        let path = grants.path("rdma/hca", "17");
        for text in [
            format!("{{\"format\": {}}}", FORMAT + 1),
            fs::read_to_string(&path).expect("text").replace(
                &format!("\"format\": {FORMAT}"),
                &format!("\"format\": {}", FORMAT + 1),
            ),
        ] {
            fs::write(&path, text).expect("written");
            let error = grants.read("rdma/hca", "17").expect_err("newer");
            let expected =
                "its format is 3, which a newer rdma-device-plugin wrote: use that release";
            assert!(error.to_string().ends_with(expected), "{error}");
            assert_eq!(grants.all(), []);
        }
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
        // another id that has the same file name
        assert_eq!(
            grants.read("aliyun/erdma", "erdma_0@3").expect("read"),
            None
        );
    }
}
