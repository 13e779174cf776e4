// SPDX-License-Identifier: Apache-2.0
//! Detects the ConnectX functions by which a node's fabric manager controls NVLink's switches, on HGX B200 and later.
//! These functions are RDMA devices of the InfiniBand class, but no network devices. Their vital product data has the
//! model `SW_MNG` (`SMDL=SW_MNG`). The fabric manager's start scripts use the same criterion (Bottlerocket's script
//! reads `/sys/class/infiniband/*/device/vpd`).

use super::{devices::Uevent, vpd};
use crate::DeviceAddress;
use std::path::Path;

/// Model in the vital product data of a function that manages NVLink's switches.
const MARK: &[u8] = b"SW_MNG";
/// PCI vendor id of Mellanox, now NVIDIA.
const VENDOR: &str = "15b3";
/// PCI class `PCI_CLASS_NETWORK_INFINIBAND` (`include/linux/pci_ids.h`).
const INFINIBAND: u32 = 0x0207;

/// Returns true if the device at `address` manages NVLink's switches.
pub(super) fn is_switch_manager(sysfs: &Path, address: &DeviceAddress) -> bool {
    let directory = sysfs.join("bus/pci/devices").join(&**address);
    let is_candidate = Uevent::read(&directory).is_some_and(|uevent| {
        uevent.class >> 8 == INFINIBAND && uevent.vendor.as_deref() == Some(VENDOR)
    });
    is_candidate
        && vpd::read(&directory)
            .is_some_and(|data| data.windows(MARK.len()).any(|window| window == MARK))
}
