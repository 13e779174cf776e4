// SPDX-License-Identifier: Apache-2.0
//! The neighbours at one time, and the file in which the daemon saves them. After a restart the daemon needs the file,
//! because it cannot receive the frames of netdevs that are in pods.

use crate::Neighbour;
use rdma_netns::{DeviceAddress, Function, Inventory};
use rdma_resources::{FileError, file};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// A neighbour, with the netdev that last received its frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Seen {
    /// Name of the netdev that received the neighbour's frame.
    pub netdev: String,
    /// The neighbour.
    #[serde(flatten)]
    pub neighbour: Neighbour,
    /// True if the netdev is not on the host at present: the daemon cannot receive its frames.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_away: bool,
}

/// Neighbours by the PCI function or auxiliary device whose netdev received their frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Switches(pub BTreeMap<DeviceAddress, Seen>);

impl Switches {
    /// Reads the daemon's file in `state_dir`. Returns no neighbours if the file does not exist.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(state_dir: &Path) -> Result<Self, FileError> {
        Ok(file::read(&path(state_dir))?.unwrap_or_default())
    }

    /// Writes the file in `state_dir`. Removes the file if there is no neighbour. Returns true if the file changed.
    ///
    /// # Errors
    /// The file cannot be written or removed.
    pub fn write(&self, state_dir: &Path) -> Result<bool, FileError> {
        match self.0.is_empty() {
            true => file::remove(&path(state_dir)),
            false => file::replace(&path(state_dir), self, 0o644),
        }
    }

    /// Returns the neighbours of the NIC with the function at `address`. A bond has the neighbours of all its ports. A
    /// virtual function or sub-function has the neighbours of its physical function, because only the physical function
    /// receives LLDP frames.
    pub fn of<'a>(&'a self, address: &DeviceAddress, inventory: &Inventory) -> Vec<&'a Seen> {
        let functions = functions(address, inventory).into_iter();
        functions.filter_map(|it| self.0.get(&it)).collect()
    }
}

/// Returns the functions whose netdevs receive the LLDP frames for the NIC with the function at `address`.
pub(crate) fn functions(address: &DeviceAddress, inventory: &Inventory) -> BTreeSet<DeviceAddress> {
    let function = inventory.function(address);
    let netdev_function = function.and_then(|it| it.netdev_function.as_ref());
    let physical = function.and_then(|it| it.device.physical_function.as_ref());
    let own = netdev_function.or(physical).unwrap_or(address);
    let mut functions = BTreeSet::from([own.clone()]);
    if let Some(bond) = inventory.function(own).and_then(bond) {
        let ports = inventory.functions.iter();
        let ports = ports.filter(|it| it.netdev_function.is_none() && self::bond(it) == Some(bond));
        functions.extend(ports.map(|it| it.device.address.clone()));
    }
    functions
}

fn bond(function: &Function) -> Option<&str> {
    let netdev = function.netdevs.first()?;
    // a master that receives all frames of the netdev, such as a bridge, is no bond
    netdev
        .master
        .as_deref()
        .filter(|_| netdev.taken_by.is_none())
}

/// Returns the texts that `part` selects, in the order of switches and ports, joined to one text. Equal texts that
/// follow each other occur once. Returns `None` if there is no neighbour.
pub fn joined<'a>(seen: &[&'a Seen], part: impl Fn(&'a Neighbour) -> &'a str) -> Option<String> {
    let mut neighbours: Vec<&Neighbour> = seen.iter().map(|it| &it.neighbour).collect();
    neighbours.sort_by_key(|it| (it.switch(), it.port()));
    let mut parts: Vec<&str> = neighbours.into_iter().map(part).collect();
    parts.dedup();
    (!parts.is_empty()).then(|| parts.join(","))
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("switches.json")
}
