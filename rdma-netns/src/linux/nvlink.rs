// SPDX-License-Identifier: Apache-2.0
//! The ConnectX functions by which a node's fabric manager speaks to NVLink's switches, on HGX B200 and
//! later. They are RDMA devices of the InfiniBand class, and no network: the model in their vital product
//! data is `SW_MNG` (`SMDL=SW_MNG`), which is how the fabric manager's start scripts find them, too (Bottlerocket's
//! reads `/sys/class/infiniband/*/device/vpd` for it).

use super::devices::Uevent;
use crate::DeviceAddress;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// In the vital product data of a function that manages switches.
const MARK: &[u8] = b"SW_MNG";
/// Mellanox, now NVIDIA.
const VENDOR: &str = "15b3";
/// `PCI_CLASS_NETWORK_INFINIBAND`, `include/linux/pci_ids.h`
const INFINIBAND: u32 = 0x0207;

/// What was read before: vital product data stays the same, and is read four bytes at a time from the device.
static READ: Mutex<BTreeMap<PathBuf, bool>> = Mutex::new(BTreeMap::new());

/// Whether the device at `address` is one of them.
pub(super) fn is_switch_manager(sysfs: &Path, address: &DeviceAddress) -> bool {
    let directory = sysfs.join("bus/pci/devices").join(&**address);
    let is_candidate = Uevent::read(&directory).is_some_and(|uevent| {
        uevent.class >> 8 == INFINIBAND && uevent.vendor.as_deref() == Some(VENDOR)
    });
    if !is_candidate {
        return false;
    }
    let file = directory.join("vpd");
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = read.get(&file) {
        return *known;
    }
    let Ok(data) = fs::read(&file) else {
        return false;
    };
    let found = data.windows(MARK.len()).any(|window| window == MARK);
    read.insert(file, found);
    found
}
