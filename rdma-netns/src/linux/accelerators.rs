// SPDX-License-Identifier: Apache-2.0
//! GPUs and other accelerators, and their names in device plugins.

use super::{
    devices::{Uevent, address_of, entries, link_name, numa_node, read},
    pci_path::path,
};
use crate::{Accelerator, DeviceAddress, PciPath};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
};

/// PCI vendors whose display controllers are accelerators (pci.ids): NVIDIA, AMD, Intel, Moore Threads. Display
/// controllers of other vendors only drive a server's console.
const GPU_VENDORS: [&str; 4] = ["10de", "1002", "8086", "1ed5"];

/// Directory of NVIDIA's driver below procfs with the node's GPUs. A container without GPUs also sees all of them in
/// this directory.
const NVIDIA: &str = "driver/nvidia/gpus";

/// Returns the node's accelerators by address. Omits the functions in `others`.
///
/// # Errors
/// sysfs cannot be read.
pub fn accelerators(
    sysfs: &Path,
    others: &BTreeSet<&DeviceAddress>,
) -> io::Result<Vec<Accelerator>> {
    let mut found = Vec::new();
    for directory in entries(&sysfs.join("bus/pci/devices"))? {
        let address = address_of(&directory).filter(|address| !others.contains(address));
        let Some((address, uevent)) = address.zip(Uevent::read(&directory)) else {
            continue;
        };
        let path = path(&directory);
        let vendor = uevent.vendor.unwrap_or_default();
        if is_accelerator(uevent.class, &vendor, &path) {
            found.push(Accelerator {
                numa_node: numa_node(&directory),
                address,
                vendor,
                path,
            });
        }
    }
    found.sort_by(|a, b| a.address.cmp(&b.address));
    Ok(found)
}

/// Returns true for processing accelerators, for 3D controllers, and for other display controllers of [`GPU_VENDORS`]
/// below a bridge: a display controller on the root bus is part of the processor. Returns false for NVSwitches, which
/// are bridges (class 0x0680).
fn is_accelerator(class: u32, vendor: &str, path: &PciPath) -> bool {
    match (class >> 16, class >> 8) {
        (0x12, _) | (_, 0x0302) => true,
        (0x03, _) => GPU_VENDORS.contains(&vendor) && !path.bridges.is_empty(),
        _ => false,
    }
}

/// Returns the other names that device plugins use for PCI functions: the UUID (`GPU-…`) and the device file
/// (`nvidia3`) of NVIDIA GPUs, and the DRM device file (`card1`). Omits names that cannot be read: NVIDIA's driver may
/// report question marks instead of the UUID of an unused GPU.
pub fn accelerator_names(sysfs: &Path, procfs: &Path) -> BTreeMap<String, DeviceAddress> {
    let mut names = BTreeMap::new();
    for directory in entries(&procfs.join(NVIDIA)).unwrap_or_default() {
        let Some((address, text)) = address_of(&directory).zip(read(&directory, "information"))
        else {
            continue;
        };
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let (_, value) = lines.find(|(name, _)| *name == key)?;
            Some(value.trim())
        };
        let uuid = value("GPU UUID").filter(|it| !it.contains('?'));
        names.extend(uuid.map(|uuid| (uuid.to_owned(), address.clone())));
        let minor = value("Device Minor");
        names.extend(minor.map(|minor| (format!("nvidia{minor}"), address)));
    }
    for directory in entries(&sysfs.join("class/drm")).unwrap_or_default() {
        let name = directory.file_name().and_then(|name| name.to_str());
        // `card1-DP-1` is a video output of a card
        let card = name.filter(|name| name.starts_with("card") && !name.contains('-'));
        let address = link_name(&directory, "device").and_then(|name| name.try_into().ok());
        names.extend(card.map(str::to_owned).zip(address));
    }
    names
}
