// SPDX-License-Identifier: Apache-2.0
//! Data Direct. A ConnectX-8 below a CPU's root port has a second function below a GPU's switch, and reaches the GPU's
//! memory through this function (`drivers/infiniband/hw/mlx5/data_direct.c`). The position of the second function
//! determines the NIC's distance to the GPU. Both functions have the same id in their vital product data. rdma-core's
//! `rdma_topo` pairs them by this id too (`kernel-boot/rdma_topo`, `vpd_v3`).

use super::{
    devices::{Uevent, entries},
    pci_path::path,
    vpd,
};
use crate::{Function, PciPath};
use std::{collections::BTreeMap, io, path::Path};

/// PCI vendor id of Mellanox, now NVIDIA.
const VENDOR: &str = "15b3";
/// PCI device id of a Data Direct function (`mlx5_data_direct_pci_table`, `drivers/infiniband/hw/mlx5/data_direct.c`).
const DATA_DIRECT: &str = "2100";
/// The keyword of the id that functions of one card share.
const ID: &[u8; 2] = b"V3";

/// Sets [`Function::data_direct`] of NVIDIA's functions that have RDMA devices and a Data Direct function. Reads vital
/// product data only if the node has a Data Direct function.
pub(super) fn find(sysfs: &Path, functions: &mut [Function]) -> io::Result<()> {
    let devices = sysfs.join("bus/pci/devices");
    let mut found: BTreeMap<Vec<u8>, PciPath> = BTreeMap::new();
    for directory in entries(&devices)? {
        let is_one = Uevent::read(&directory).is_some_and(|uevent| {
            uevent.vendor.as_deref() == Some(VENDOR)
                && uevent.device.as_deref() == Some(DATA_DIRECT)
        });
        if let Some(id) = is_one.then(|| id(&directory)).flatten() {
            found.insert(id, path(&directory));
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    let with_rdma = functions.iter_mut().filter(|it| !it.hcas.is_empty());
    for function in with_rdma.filter(|it| it.device.vendor.as_deref() == Some(VENDOR)) {
        let physical = function.device.physical_function.as_ref();
        let of = physical.unwrap_or(&function.device.address);
        let id = id(&devices.join(&**of));
        function.data_direct = id.and_then(|id| found.get(&id).cloned());
    }
    Ok(())
}

fn id(directory: &Path) -> Option<Vec<u8>> {
    let data = vpd::read(directory)?;
    vpd::value(&data, ID).map(<[u8]>::to_vec)
}
