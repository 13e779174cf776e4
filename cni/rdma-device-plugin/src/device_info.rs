// SPDX-License-Identifier: Apache-2.0
//! Device information for Multus. Multus copies it into a pod's annotation `network-status`, from which KubeVirt and
//! app-netutil read it. Each id of an exclusive PCI device has one file (Device Information Specification 1.1.0 of the
//! Network Plumbing Working Group, sections 3.1.3 and 4.1).
//!
//! Other device plugins have files in the same directory, and a file does not name the program that wrote it. The
//! daemon therefore records the paths of its files before it writes them. After a crash, the next daemon finds these
//! files by the record.
//!
//! The specification requires a device plugin to delete its files when it stops. This daemon keeps its files when it
//! stops, because kubelet does not call Allocate again for a pod with a new sandbox. The daemon removes a file when the
//! device is no longer offered. `uninstall` and `--release` remove all recorded files.

use offer::Offer;
use rdma_netns::{DeviceAddress, Inventory};
use rdma_resources::{FileError, Sharing, file};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    path::{Path, PathBuf},
};

const VERSION: &str = "1.1.0";

/// Record of the daemon's files, in the state directory.
const RECORD: &str = "device-info.json";

const ENDING: &str = "-device.json";

/// Content of a file with device information.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    r#type: &'static str,
    version: &'static str,
    pci: Pci,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Pci {
    pci_address: String,
    rdma_device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pf_pci_address: Option<String>,
}

/// Paths of the files that the daemon wrote.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    files: BTreeSet<PathBuf>,
}

impl Record {
    /// Reads the record in the state directory. Ignores paths whose file names do not have the daemon's form: a user
    /// without root on the node may be able to write to the state directory, but `uninstall` removes recorded files as
    /// root.
    fn read(path: &Path) -> Result<Option<Self>, FileError> {
        let record: Option<Self> = file::read(path)?;
        Ok(record.map(Self::ours))
    }

    /// Keeps only absolute paths whose file name has the daemon's form, such as `rdma-nic-0000:3b:00.0-device.json`.
    #[must_use]
    pub fn ours(mut self) -> Self {
        self.files.retain(|path| {
            let is_ours = is_named_as_ours(path);
            if !is_ours {
                log::warn!(
                    "{RECORD} names {path:?}, which is no file of device information; not removing it"
                );
            }
            is_ours
        });
        self
    }

    /// Returns the paths of the files.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(PathBuf::as_path)
    }
}

fn is_named_as_ours(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    let address = name
        .and_then(|name| name.strip_suffix(ENDING)?.rsplit_once('-'))
        .and_then(|(_, address)| DeviceAddress::try_from(address.to_owned()).ok());
    path.is_absolute() && address.is_some_and(|it| it.bus() == "pci")
}

/// Returns the files for `offers`, by name. Shared devices have no file. Sub-functions have no file either, because the
/// specification has no type for them.
pub fn files<'a>(
    offers: impl IntoIterator<Item = &'a Offer>,
    inventory: &Inventory,
) -> BTreeMap<String, DeviceInfo> {
    let exclusive = offers
        .into_iter()
        .filter(|it| it.sharing == Sharing::Exclusive);
    let devices = exclusive.flat_map(|offer| offer.devices.iter().map(move |it| (offer, it)));
    let pci = devices.filter(|(_, device)| device.address.bus() == "pci");
    pci.map(|(offer, device)| {
        let function = inventory.function(&device.address);
        let physical = function.and_then(|it| it.device.physical_function.as_ref());
        let address = device.address.to_string();
        // form the name like the working group's library (`pkg/utils` of network-attachment-definition-client)
        let name = format!("{}-{address}{ENDING}", offer.name).replace('/', "-");
        let pci = Pci {
            pci_address: address,
            rdma_device: device.hca.name.clone(),
            pf_pci_address: physical.map(DeviceAddress::to_string),
        };
        let info = DeviceInfo {
            r#type: "pci",
            version: VERSION,
            pci,
        };
        (name, info)
    })
    .collect()
}

/// Writes the `required` files to `directory`, and removes all other recorded files. Returns true if a file changed.
///
/// # Errors
/// A file, or the record in `state_dir`, cannot be read, written or removed.
pub fn write(
    directory: &Path,
    required: &BTreeMap<String, DeviceInfo>,
    state_dir: &Path,
) -> Result<bool, FileError> {
    let record = state_dir.join(RECORD);
    let recorded = Record::read(&record)?.unwrap_or_default();
    let required: BTreeMap<PathBuf, &DeviceInfo> = required
        .iter()
        .map(|(name, info)| (directory.join(name), info))
        .collect();
    let files: BTreeSet<PathBuf> = required.keys().cloned().collect();
    let all = Record {
        files: &recorded.files | &files,
    };
    if all.files.is_empty() {
        return Ok(false);
    }
    file::replace(&record, &all, 0o600)?;
    let mut is_news = false;
    for (path, info) in &required {
        is_news |= file::replace(path, info, 0o644)?;
    }
    for path in recorded.files.difference(&files) {
        is_news |= take_away(path)?;
    }
    file::replace(&record, &Record { files }, 0o600)?;
    Ok(is_news)
}

/// Returns true if the record is readable, and a recorded file exists.
pub fn is_there(state_dir: &Path) -> bool {
    let record = Record::read(&state_dir.join(RECORD));
    let record = record.ok().flatten().unwrap_or_default();
    record.files().any(Path::exists)
}

/// Removes the recorded files and the record. Returns the number of removed files.
///
/// # Errors
/// A file cannot be removed, or the record cannot be read.
pub fn remove(state_dir: &Path) -> Result<usize, FileError> {
    let record = state_dir.join(RECORD);
    let Some(Record { files }) = Record::read(&record)? else {
        return Ok(0);
    };
    let mut removed = 0;
    for path in &files {
        removed += usize::from(take_away(path)?);
    }
    take_away(&record)?;
    Ok(removed)
}

/// Removes the file at `path`, and its temporary file, which a killed process may have left. Returns true if the file
/// at `path` existed.
fn take_away(path: &Path) -> Result<bool, FileError> {
    file::remove(&file::unfinished(path))?;
    file::remove(path)
}
