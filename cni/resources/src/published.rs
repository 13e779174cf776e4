// SPDX-License-Identifier: Apache-2.0
//! The devices of each resource's ids, as the daemon advertises them.

use crate::{FileError, Sharing, file};
use rdma_netns::DeviceAddress;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Format that this version writes. A newer format is refused. Raise it if a reader of the present format, without
/// knowing a new field, would attach pods to another netdev.
pub const FORMAT: u32 = 2;

/// Content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Published {
    /// Format, see [`FORMAT`].
    pub format: u32,
    /// Directory in which the runtime reads CDI specifications, if containers get devices by CDI names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdi_dir: Option<PathBuf>,
    /// Resources by name.
    pub resources: BTreeMap<String, Resource>,
    /// True if an administrator has listed the resources that the chain attaches, and so excludes the others on
    /// purpose.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chain_names_resources: bool,
    /// Physical functions of those devices that are virtual functions or sub-functions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub physical_functions: BTreeMap<DeviceAddress, DeviceAddress>,
}

/// Published resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    /// Number of pods that can have an id's devices.
    pub sharing: Sharing,
    /// Devices of the ids.
    #[serde(flatten)]
    pub devices: Devices,
    /// The parent of the pods' child netdevs, for each device whose resource has `parents`: the device's own netdev,
    /// its bond, or a VLAN of one of these.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parents: BTreeMap<DeviceAddress, String>,
    /// True if its containers have limits of the rdma controller.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub limited: bool,
}

/// Devices of a resource's ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Devices {
    /// Devices that every id stands for.
    Every(Vec<DeviceAddress>),
    /// Own devices for each id.
    ById(BTreeMap<String, Vec<DeviceAddress>>),
}

impl Resource {
    /// Returns the devices of `id`. None: the id does not exist.
    pub fn devices(&self, id: &str) -> Option<&[DeviceAddress]> {
        match &self.devices {
            Devices::Every(all) => Some(all),
            Devices::ById(each) => each.get(id).map(Vec::as_slice),
        }
    }

    /// Returns the devices of all ids. A device of several ids is returned several times.
    pub fn all_devices(&self) -> Vec<&DeviceAddress> {
        match &self.devices {
            Devices::Every(all) => all.iter().collect(),
            Devices::ById(each) => each.values().flatten().collect(),
        }
    }
}

impl Published {
    /// Reads the file. `None`: the file does not exist.
    ///
    /// # Errors
    /// The file cannot be read, or a newer daemon wrote it.
    pub fn read(state_dir: &Path) -> Result<Option<Self>, FileError> {
        file::read_record(&path(state_dir), FORMAT)
    }

    /// Writes the file. Returns true if the content changed.
    pub fn write(&self, state_dir: &Path) -> Result<bool, FileError> {
        file::replace(&path(state_dir), self, 0o644)
    }
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("resources.json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn address(text: &str) -> DeviceAddress {
        DeviceAddress::try_from(text.to_owned()).expect("an address")
    }

    #[test]
    fn comes_back_as_it_was_written() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(Published::read(directory.path()).expect("read"), None);
        let hca = Resource {
            sharing: Sharing::Shared,
            devices: Devices::Every(vec![address("0000:3b:00.0"), address("0000:5e:00.0")]),
            parents: BTreeMap::new(),
            limited: false,
        };
        let nic = address("mlx5_core.sf.4");
        let erdma = Resource {
            sharing: Sharing::Exclusive,
            devices: Devices::ById([("erdma_0/1".to_owned(), vec![nic.clone()])].into()),
            parents: BTreeMap::new(),
            limited: false,
        };
        assert_eq!(hca.devices("17").map(<[_]>::len), Some(2));
        assert_eq!(erdma.devices("erdma_0/1"), Some([nic].as_slice()));
        assert_eq!(erdma.devices("erdma_0/2"), None);
        let published = Published {
            format: FORMAT,
            cdi_dir: None,
            resources: [
                ("rdma/hca".to_owned(), hca),
                ("aliyun/erdma".to_owned(), erdma),
            ]
            .into(),
            chain_names_resources: true,
            physical_functions: [(address("0000:3b:00.2"), address("0000:3b:00.0"))].into(),
        };
        assert!(published.write(directory.path()).expect("written"));
        assert!(!published.write(directory.path()).expect("no news"));
        let read = Published::read(directory.path()).expect("read");
        assert_eq!(read, Some(published));
    }

    #[test]
    fn a_newer_format_is_refused_and_never_half_read() {
        let directory = tempfile::tempdir().expect("a directory");
        for rest in ["", ", \"cdiDir\": \"/var/run/cdi\", \"resources\": {}"] {
            let text = format!("{{\"format\": {}{rest}}}", FORMAT + 1);
            std::fs::write(path(directory.path()), text).expect("written");
            let error = Published::read(directory.path()).expect_err("newer");
            let expected = "its format is 3, of a newer rdma-device-plugin; use that one";
            assert!(error.to_string().ends_with(expected), "{error}");
        }
    }

    #[test]
    fn the_format_is_a_promise_to_other_versions() {
        let text = json!({
            "format": FORMAT,
            "cdiDir": "/var/run/cdi",
            "resources": {
                "rdma/hca": { "sharing": "shared", "every": ["0000:3b:00.0"] },
                "rdma/vf": { "sharing": "exclusive", "byId": { "0000:3b:00.2": ["0000:3b:00.2"] } },
                "rdma/tenant-a": {
                    "sharing": "shared",
                    "every": ["0000:3b:00.0"],
                    "parents": { "0000:3b:00.0": "bond0.100" },
                },
                "rdma/tenant-b": {
                    "sharing": "shared",
                    "byId": { "mlx5_bond_0/0": ["0000:3b:00.0"] },
                    "parents": { "0000:3b:00.0": "bond0.200" },
                },
            },
            "chainNamesResources": true,
            "physicalFunctions": { "0000:3b:00.2": "0000:3b:00.0" },
        });
        let published: Published = serde_json::from_value(text.clone()).expect("understood");
        let tenant = &published.resources["rdma/tenant-b"];
        let nic = address("0000:3b:00.0");
        assert_eq!(
            tenant.devices("mlx5_bond_0/0"),
            Some([nic.clone()].as_slice())
        );
        assert_eq!(tenant.parents[&nic], "bond0.200");
        assert_eq!(serde_json::to_value(published).expect("JSON"), text);
    }
}
