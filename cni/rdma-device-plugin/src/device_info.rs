// SPDX-License-Identifier: Apache-2.0
//! What Multus tells of an exclusive device in a pod's `network-status`, and KubeVirt and app-netutil read there: one file
//! for each id (Device Information Specification 1.1.0 of the Network Plumbing Working Group, sections 3.1.3 and 4.1).
//!
//! Other device plugins have files in the same directory, and nothing in a file says whose it is. So which ones are this
//! daemon's is recorded before they are written: what a killed one left is removed by the next.
//!
//! The specification has a device plugin delete its files when it stops. These stay while a daemon is replaced, since
//! kubelet does not allocate again to a pod whose sandbox is made anew; they go with the device, by `uninstall`, or by
//! `--release`.

use crate::offer::Offer;
use rdma_netns::{DeviceAddress, Inventory};
use rdma_resources::{FileError, Sharing, file};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    path::{Path, PathBuf},
};

/// The specification's version.
const VERSION: &str = "1.1.0";

/// In the state directory: which files are ours.
const RECORD: &str = "device-info.json";

/// What the name of each file ends with.
const ENDING: &str = "-device.json";

/// What is in a file.
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

/// Which files are the daemon's, with their paths.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    files: BTreeSet<PathBuf>,
}

impl Record {
    /// That of the state directory, without what cannot be the daemon's by its name. Who writes there is not root on the
    /// node, and `uninstall`, which removes what is recorded, is.
    fn read(path: &Path) -> Result<Option<Self>, FileError> {
        let record: Option<Self> = file::read(path)?;
        Ok(record.map(Self::ours))
    }

    /// What can be the daemon's by its name: `rdma-nic-0000:3b:00.0-device.json`.
    #[must_use]
    pub fn ours(mut self) -> Self {
        self.files.retain(|path| {
            let is_ours = is_named_as_ours(path);
            if !is_ours {
                log::warn!(
                    "{RECORD} names {path:?}, which is no file of device information: it stays"
                );
            }
            is_ours
        });
        self
    }

    /// The paths.
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

/// The files that `offers` are to have, by their names. A shared device is no pod's alone, and the specification has no
/// type for a sub-function.
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
        // as the working group's own library names it (`pkg/utils` of network-attachment-definition-client)
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

/// Has `directory` have `wanted`, and nothing else of ours anywhere. Whether something was changed.
///
/// # Errors
/// A file, or the record in `state_dir`, cannot be read, written or removed.
pub fn write(
    directory: &Path,
    wanted: &BTreeMap<String, DeviceInfo>,
    state_dir: &Path,
) -> Result<bool, FileError> {
    let record = state_dir.join(RECORD);
    let recorded = Record::read(&record)?.unwrap_or_default();
    let wanted: BTreeMap<PathBuf, &DeviceInfo> = wanted
        .iter()
        .map(|(name, info)| (directory.join(name), info))
        .collect();
    let files: BTreeSet<PathBuf> = wanted.keys().cloned().collect();
    let all = Record {
        files: &recorded.files | &files,
    };
    if all.files.is_empty() {
        return Ok(false);
    }
    file::replace(&record, &all, 0o600)?;
    let mut is_news = false;
    for (path, info) in &wanted {
        is_news |= file::replace(path, info, 0o644)?;
    }
    for path in recorded.files.difference(&files) {
        is_news |= take_away(path)?;
    }
    file::replace(&record, &Record { files }, 0o600)?;
    Ok(is_news)
}

/// Whether a file of ours is there.
pub fn is_there(state_dir: &Path) -> bool {
    let record = Record::read(&state_dir.join(RECORD));
    let record = record.ok().flatten().unwrap_or_default();
    record.files().any(Path::exists)
}

/// Removes all of ours, and the record of them. How many there were.
///
/// # Errors
/// One stays, or the record cannot be read.
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

/// Removes the file at `path`, and what a writer that was killed left of it. Whether it was there.
fn take_away(path: &Path) -> Result<bool, FileError> {
    file::remove(&file::unfinished(path))?;
    file::remove(path)
}
