// SPDX-License-Identifier: Apache-2.0
//! The resources that the daemon advertises, with the devices of each id.

use crate::{FileError, Sharing, file};
use rdma_netns::DeviceAddress;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Format that this version writes. A reader refuses a newer format. Raise the number with a new field if readers
/// without the field would attach pods to another netdev.
pub const FORMAT: u32 = 2;

/// Content of the file `resources.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Published {
    /// Format of the file ([`FORMAT`]).
    pub format: u32,
    /// Directory from which the runtime reads CDI specifications. `None`: containers get devices by path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdi_dir: Option<PathBuf>,
    /// Boot id of the boot in which the file was written. `None`: an earlier version wrote the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Resources by name.
    pub resources: BTreeMap<String, Resource>,
    /// True if the configuration lists the resources that the chain attaches. The chain then deliberately ignores all
    /// other resources.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chain_names_resources: bool,
    /// The physical function of each device that is a virtual function or a sub-function.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub physical_functions: BTreeMap<DeviceAddress, DeviceAddress>,
}

/// A resource that the daemon advertises.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    /// Number of pods that may use an id's devices: one or several.
    pub sharing: Sharing,
    /// Devices of the ids.
    #[serde(flatten)]
    pub devices: Devices,
    /// Parents of the pods' child netdevs, for each device of a resource with `parents`. A parent is the device's own
    /// netdev, its bond, or a VLAN of the netdev or the bond.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parents: BTreeMap<DeviceAddress, String>,
    /// True if the rdma controller limits the resource's containers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub limited: bool,
    /// Number of ids, or for `perNic` number of ids of each device. `None`: the GID tables did not determine this
    /// number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<u32>,
}

/// Devices of a resource's ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Devices {
    /// The devices that every id of the resource has.
    Every(Vec<DeviceAddress>),
    /// The devices of each id.
    ById(BTreeMap<String, Vec<DeviceAddress>>),
}

impl Resource {
    /// Returns the devices of `id`. Returns `None` if the resource has no such id.
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
    /// Reads the file. Returns `None` if the file does not exist.
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
            ids: None,
        };
        let nic = address("mlx5_core.sf.4");
        let erdma = Resource {
            sharing: Sharing::Exclusive,
            devices: Devices::ById([("erdma_0/1".to_owned(), vec![nic.clone()])].into()),
            parents: BTreeMap::new(),
            limited: false,
            ids: None,
        };
        assert_eq!(hca.devices("17").map(<[_]>::len), Some(2));
        assert_eq!(erdma.devices("erdma_0/1"), Some([nic].as_slice()));
        assert_eq!(erdma.devices("erdma_0/2"), None);
        let published = Published {
            format: FORMAT,
            cdi_dir: None,
            boot_id: None,
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
            let expected =
                "its format is 3, which a newer rdma-device-plugin wrote: use that release";
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
