// SPDX-License-Identifier: Apache-2.0
//! What was given to a NIC, and how it was before: written down before the first change, so that
//! it can be put back by whoever comes after a crash.
//!
//! `<stateDir>/erdma/<PCI address>.json`; `<stateDir>/erdma/lock` is held by the daemon that
//! brings NICs up.

use cni_protocol::lock::{self, Held};
use rdma_netns::{Address, DeviceAddress, HardwareAddress, InterfaceName, Link, Namespace, Route};
use rdma_resources::{FileError, file};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// The format that this version writes. A field that a later one adds is passed over.
const FORMAT: u32 = 1;

/// Settings that are changed, and kept as they were before.
pub const SETTINGS: [&str; 1] = [super::plan::RP_FILTER];

/// A NIC that the daemon brought up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// 1
    pub format: u32,
    /// The boot that it is of: after another one nothing of it is there.
    pub boot_id: String,
    /// The NIC's PCI function.
    pub address: DeviceAddress,
    /// Its netdev's name then.
    pub netdev: InterfaceName,
    /// Its hardware address.
    pub mac: HardwareAddress,
    /// The hardware behind the netdev, where the kernel tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceAddress>,
    /// `veth`…; a NIC has none, other than a bond or VLAN with its hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// How the netdev was.
    pub before: Before,
    /// What it was given.
    pub given: Given,
    /// What it was given earlier, some of which may be there yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub superseded: Vec<Given>,
}

/// A netdev before it was brought up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Before {
    /// Whether it was up.
    pub up: bool,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// Its addresses: link-local ones at most.
    pub addresses: Vec<Address>,
    /// Those of [`SETTINGS`].
    pub settings: BTreeMap<String, i32>,
}

/// What a netdev is given, besides being up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Given {
    /// MTU, bytes; none: its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Its address.
    pub address: Address,
    /// Connected route, then the default route.
    pub routes: Vec<Route>,
    /// Settings, by the names of [`rdma_netns::link::SYSCTLS`].
    pub settings: BTreeMap<String, i32>,
}

/// Whether `mac` is the hardware address of `link`, or was before it became a bond's port.
pub(super) fn has_mac(link: &Link, mac: &HardwareAddress) -> bool {
    link.mac == *mac || link.permanent_mac.as_ref() == Some(mac)
}

impl Before {
    /// As `link` is now.
    pub fn of(link: &Link) -> Self {
        let setting = |key: &str| Some((key.to_owned(), *link.sysctls.get(key)?));
        Self {
            up: link.up,
            mtu: link.mtu,
            addresses: link.addresses.clone(),
            settings: SETTINGS.into_iter().filter_map(setting).collect(),
        }
    }
}

impl Record {
    /// The first one of a NIC whose netdev is `link`.
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
        }
    }

    /// Whether `link` is the netdev that it is of.
    pub fn is_of(&self, link: &Link) -> bool {
        has_mac(link, &self.mac) && link.parent == self.parent && link.kind == self.kind
    }

    /// The netdev, if it is in the namespace.
    pub fn link<'a>(&self, host: &'a Namespace) -> Option<&'a Link> {
        let fitting = || host.links.iter().filter(|link| self.is_of(link));
        let named = fitting().find(|link| link.name == self.netdev);
        named.or_else(|| fitting().next())
    }

    /// All that it ever was given, the latest first.
    pub fn gifts(&self) -> impl Iterator<Item = &Given> {
        std::iter::once(&self.given).chain(&self.superseded)
    }

    /// With `given` in the place of what it had.
    pub fn regiven(mut self, given: Given) -> Self {
        if self.given != given {
            let earlier = std::mem::replace(&mut self.given, given);
            self.superseded.push(earlier);
        }
        self
    }
}

/// A record could not be read, written or removed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// A later version wrote it.
    #[error("{path:?} has format {format}, of a later version than this one")]
    Later {
        /// The record.
        path: PathBuf,
        /// Its format.
        format: u32,
    },
    /// The directory, or a file that is to go.
    #[error("cannot {verb} {path:?}: {source}")]
    Io {
        /// `read`, `remove`, `lock`
        verb: &'static str,
        /// What.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another daemon brings NICs up.
    #[error("{0:?} is locked: a daemon that brings eRDMA NICs up is running")]
    Locked(PathBuf),
}

/// The records of a node.
#[derive(Clone, Debug)]
pub struct Records {
    root: PathBuf,
}

impl Records {
    /// Those in the state directory.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            root: state_dir.join("erdma"),
        }
    }

    /// Keeps others from bringing NICs up or releasing them, as long as the answer lives.
    ///
    /// # Errors
    /// [`RecordError::Locked`]; a directory that cannot be written.
    pub fn lock(&self) -> Result<Held, RecordError> {
        let path = self.root.join("lock");
        let opened = fs::create_dir_all(&self.root).and_then(|()| lock::open(&path));
        let failed = |source| RecordError::Io {
            verb: "lock",
            path: path.clone(),
            source,
        };
        let held = opened.and_then(lock::attempt).map_err(failed)?;
        held.ok_or_else(|| RecordError::Locked(path.clone()))
    }

    /// The record of the NIC at `address`; none: it was not brought up.
    ///
    /// # Errors
    /// A file that is no record.
    pub fn read(&self, address: &DeviceAddress) -> Result<Option<Record>, RecordError> {
        self.read_file(self.path(address))
    }

    /// Each record, or why it cannot be read.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn all(&self) -> Result<Vec<Result<Record, RecordError>>, RecordError> {
        let failed = |source| RecordError::Io {
            verb: "read",
            path: self.root.clone(),
            source,
        };
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            entries => entries.map_err(failed)?,
        };
        let mut paths = vec![];
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|end| end == "json") {
                paths.push(path);
            }
        }
        paths.sort();
        let read = |path| self.read_file(path).transpose();
        Ok(paths.into_iter().filter_map(read).collect())
    }

    /// Writes it, unless it is there already.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, record: &Record) -> Result<(), RecordError> {
        file::replace(&self.path(&record.address), record, 0o600)?;
        Ok(())
    }

    /// Removes it.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(&self, address: &DeviceAddress) -> Result<(), RecordError> {
        let path = self.path(address);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(RecordError::Io {
                verb: "remove",
                path,
                source,
            }),
            _ => Ok(()),
        }
    }

    fn read_file(&self, path: PathBuf) -> Result<Option<Record>, RecordError> {
        let record: Option<Record> = file::read(&path)?;
        match record {
            Some(Record { format, .. }) if format > FORMAT => {
                Err(RecordError::Later { path, format })
            }
            record => Ok(record),
        }
    }

    fn path(&self, address: &DeviceAddress) -> PathBuf {
        self.root.join(format!("{address}.json"))
    }
}
