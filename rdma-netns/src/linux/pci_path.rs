// SPDX-License-Identifier: Apache-2.0
//! PCI path of a function in sysfs.

use crate::{DeviceAddress, PciPath};
use std::{ffi::OsStr, fs, path::Path};

/// Returns the PCI path to the function to which `link` leads. The link's target is
/// `../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0`, for example.
pub(super) fn path(link: &Path) -> PciPath {
    let target = fs::read_link(link).unwrap_or_default();
    let mut path = PciPath::default();
    for part in target.iter().filter_map(OsStr::to_str) {
        if part.starts_with("pci") && part.contains(':') {
            // a host bridge below a function (VMD) starts a new path
            path.host_bridge = part.to_owned();
            path.bridges.clear();
        } else {
            path.bridges
                .extend(DeviceAddress::try_from(part.to_owned()));
        }
    }
    path.bridges.pop();
    path
}
