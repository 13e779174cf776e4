// SPDX-License-Identifier: Apache-2.0
//! Record of the configuration that the daemon gave a NIC, and of the NIC's earlier state. The daemon writes the record
//! before the first change, so that it can undo the changes after a crash.
//!
//! The files are `<stateDir>/erdma/<PCI address>.json`. A daemon that brings NICs up holds the lock
//! `<stateDir>/erdma/lock`, and so does a release.

use cni_protocol::{
    lock::{self, Held},
    state_file::{self, failed},
};
use rdma_netns::{
    Address, DeviceAddress, HardwareAddress, InterfaceName, Link, LinkChange, Namespace, Op, Route,
};
use rdma_resources::{FileError, file};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Format that this version writes. This version refuses a record with a higher format.
const FORMAT: u32 = 1;

/// Setting of the reverse path filter, by its name in [`rdma_netns::link::SYSCTLS`].
pub const RP_FILTER: &str = "ipv4/rp_filter";

/// A NIC that the daemon has brought up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Format of the record: 1.
    pub format: u32,
    /// Boot id at the time of the record. A reboot removes all recorded configuration.
    pub boot_id: String,
    /// PCI function of the NIC.
    pub address: DeviceAddress,
    /// Name of the netdev at the bring-up.
    pub netdev: InterfaceName,
    /// MAC address of the netdev.
    pub mac: HardwareAddress,
    /// Hardware of the netdev, if the kernel reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceAddress>,
    /// Kind of the netdev, such as `veth`. `None` for a NIC. A bond or VLAN with the NIC's MAC address has a kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// State of the netdev before the bring-up.
    pub before: Before,
    /// Present configuration that the daemon gave the netdev.
    pub given: Given,
    /// Earlier configurations by the daemon. The netdev may still have parts of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub superseded: Vec<Given>,
    /// Addresses and routes of other programs that the kernel deletes with an address of the daemon, and that the
    /// daemon has not yet set again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LinkChange>,
}

/// State of a netdev before its bring-up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Before {
    /// True if the netdev was up.
    pub up: bool,
    /// MTU in bytes.
    pub mtu: u32,
    /// Addresses: link-local ones, and others that the kernel made. The netdev had no other addresses.
    pub addresses: Vec<Address>,
    /// Settings, as far as the kernel has them.
    pub settings: Settings,
}

/// Configuration that the daemon gives a netdev. The daemon also sets the netdev up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Given {
    /// MTU in bytes; `None`: the daemon does not change the MTU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Address of the netdev.
    pub address: Address,
    /// Routes: the connected route, and then the default route.
    pub routes: Vec<Route>,
    /// Settings that the daemon changes.
    pub settings: Settings,
}

/// Settings of a netdev that a bring-up can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Value of [`RP_FILTER`].
    #[serde(
        rename = "ipv4/rp_filter",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub rp_filter: Option<i32>,
}

/// Returns true if `mac` is the present or the permanent MAC address of `link`. A port of a bond can have another
/// present address.
pub(super) fn has_mac(link: &Link, mac: &HardwareAddress) -> bool {
    link.mac == *mac || link.permanent_mac.as_ref() == Some(mac)
}

impl Before {
    /// Returns the present state of `link`.
    pub fn of(link: &Link) -> Self {
        Self {
            up: link.up,
            mtu: link.mtu,
            addresses: link.addresses.clone(),
            settings: Settings {
                rp_filter: link.sysctls.get(RP_FILTER).copied(),
            },
        }
    }
}

impl Record {
    /// Returns the first record of the NIC at `address`. `link` is the NIC's netdev.
    pub fn new(boot_id: &str, address: &DeviceAddress, link: &Link, given: Given) -> Self {
        Self {
            format: FORMAT,
            boot_id: boot_id.to_owned(),
            address: address.clone(),
            netdev: link.name.clone(),
            mac: link.mac.clone(),
            parent: link.parent.clone(),
            kind: link.kind.clone(),
            before: Before::of(link),
            given,
            superseded: vec![],
            lost: vec![],
        }
    }

    /// Returns true if `link` is the netdev of the record.
    pub fn is_of(&self, link: &Link) -> bool {
        has_mac(link, &self.mac) && link.parent == self.parent && link.kind == self.kind
    }

    /// Returns the record's netdev, or `None` if it is not in `host`.
    pub fn link<'a>(&self, host: &'a Namespace) -> Option<&'a Link> {
        let fitting = || host.links.iter().filter(|link| self.is_of(link));
        let named = fitting().find(|link| link.name == self.netdev);
        named.or_else(|| fitting().next())
    }

    /// Returns all configurations in the record, the present one first.
    pub fn gifts(&self) -> impl Iterator<Item = &Given> {
        std::iter::once(&self.given).chain(&self.superseded)
    }

    /// Returns the record with the new configuration `given`. A different previous configuration becomes an earlier one
    /// in [`Self::superseded`].
    pub fn regiven(mut self, given: Given) -> Self {
        if self.given != given {
            let earlier = std::mem::replace(&mut self.given, given);
            self.superseded.push(earlier);
        }
        self
    }

    /// Returns true if a change of the NIC's address is incomplete.
    pub(super) fn changes_address(&self) -> bool {
        let mut superseded = self.superseded.iter();
        superseded.any(|it| !it.address.same_as(&self.given.address))
    }

    /// Returns what `link` has lost. Returns nothing during a change of the address while `link` has all earlier addresses
    /// of the daemon: the kernel has deleted nothing yet, and what is missing was removed by its program.
    pub(super) fn lost_by(&self, link: &Link) -> &[LinkChange] {
        let is_there = |it: &Given| link.address(&it.address).is_some();
        match self.changes_address() && self.superseded.iter().all(is_there) {
            true => &[],
            false => &self.lost,
        }
    }

    /// Changes [`Self::lost`] to the addresses and routes of other programs that the planned `ops` set again.
    pub(super) fn lose(&mut self, ops: &[Op]) {
        let is_own = |change: &LinkChange| match change {
            LinkChange::AddAddress(it) => self.gifts().any(|given| given.address.same_as(it)),
            LinkChange::AddRoute(it) => self.gifts().any(|given| given.routes.contains(it)),
            _ => true,
        };
        let lost = ops.iter().filter_map(|op| match op {
            Op::Link { change, .. } if !is_own(change) => Some(change.clone()),
            _ => None,
        });
        self.lost = lost.collect();
    }
}

/// Records of a node.
#[derive(Clone, Debug)]
pub struct Records {
    root: PathBuf,
}

impl Records {
    /// Returns the records in the state directory `state_dir`.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            root: state_dir.join("erdma"),
        }
    }

    /// Locks the records: no other process can then bring NICs up or release them.
    ///
    /// # Errors
    /// Another process has locked the records, or the directory cannot be written.
    pub fn lock(&self) -> Result<Held, FileError> {
        let path = self.root.join("lock");
        let opened = fs::create_dir_all(&self.root).and_then(|()| lock::open(&path));
        let held = opened.and_then(lock::attempt).and_then(|held| {
            held.ok_or_else(|| {
                io::Error::other(
                    "a daemon that brings eRDMA NICs up, or another release, is running",
                )
            })
        });
        held.map_err(failed("lock", &path))
    }

    /// Returns the record of the NIC at `address`. Returns `None` if the daemon has not brought the NIC up.
    ///
    /// # Errors
    /// The file cannot be read, or is not a valid record.
    pub fn read(&self, address: &DeviceAddress) -> Result<Option<Record>, FileError> {
        file::read_record(&self.path(address), FORMAT)
    }

    /// Returns all records. An inner error contains the reason why a record cannot be read.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn all(&self) -> Result<Vec<Result<Record, FileError>>, FileError> {
        let names = state_file::names(&self.root).map_err(failed("read", &self.root))?;
        let paths = names.iter().map(|name| self.root.join(name));
        let paths = paths.filter(|path| path.extension().is_some_and(|end| end == "json"));
        let read = |path: PathBuf| file::read_record(&path, FORMAT).transpose();
        Ok(paths.filter_map(read).collect())
    }

    /// Writes the record if the file's content differs.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, record: &Record) -> Result<(), FileError> {
        file::replace(&self.path(&record.address), record, 0o600)?;
        Ok(())
    }

    /// Removes the record.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(&self, address: &DeviceAddress) -> Result<(), FileError> {
        file::remove(&self.path(address)).map(drop)
    }

    fn path(&self, address: &DeviceAddress) -> PathBuf {
        self.root.join(format!("{address}.json"))
    }
}
