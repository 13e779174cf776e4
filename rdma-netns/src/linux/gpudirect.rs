// SPDX-License-Identifier: Apache-2.0
//! Reads the state that decides about GPUDirect, from sysfs and procfs.

use super::{
    accelerators,
    devices::{link_name, read},
};
use crate::{
    DeviceAddress,
    device::PASS_THROUGH,
    gpudirect::{AMD, GpuDirect, NVIDIA, NvidiaModules, Symbols},
};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{BufRead, BufReader},
    os::unix::fs::DirEntryExt,
    path::Path,
};

/// Traces of registered peer memory in sysfs, by PCI vendor: as NCCL (`src/transport/net_ib/gdr.cc`), UCX
/// (`src/uct/ib/base/ib_md.c`) and RCCL (`src/transport/net_ib.cc`) look for them.
const PEER_MEMORY: [(&str, &[&str]); 2] = [
    (
        NVIDIA,
        &[
            "module/nvidia_peermem",
            "module/nv_peer_mem",
            "kernel/mm/memory_peers/nv_mem",
            "kernel/mm/memory_peers/nv_mem_nc",
        ],
    ),
    (
        AMD,
        &[
            "kernel/mm/memory_peers/amdkfd",
            "kernel/memory_peers/amdkfd",
            "memory_peers/amdkfd",
        ],
    ),
];

/// Ending of the functions that import dma-bufs, `mlx5_ib_reg_user_mr_dmabuf`: all drivers name them after the field of
/// `struct ib_device_ops` (`drivers/infiniband/hw/*`).
const IMPORT: &str = "_reg_user_mr_dmabuf";
/// Beginning of the functions of ib_uverbs that these call.
const CORE_IMPORT: &str = "ib_umem_dmabuf_get";
/// Function of `ib_core` by which modules register peer memory.
const REGISTER_PEER: &str = "ib_register_peer_memory_client";

/// Reader of a node's state. It reads the kernel's symbols again only after a module came or went, as their list has
/// some ten megabytes.
#[derive(Debug, Default)]
pub struct GpuDirectReader {
    /// Inodes of the modules' directories, and the symbols with these modules.
    known: Option<(BTreeSet<u64>, Option<Symbols>)>,
}

impl GpuDirectReader {
    /// Returns the state of a node with sysfs and procfs mounted there and the NICs at `nics`. `None`: the node has no
    /// accelerators.
    pub fn read<'a>(
        &mut self,
        sysfs: &Path,
        procfs: &Path,
        nics: impl Iterator<Item = &'a DeviceAddress>,
    ) -> Option<GpuDirect> {
        let nics: BTreeSet<&DeviceAddress> = nics.collect();
        let mut accelerators = accelerators::all(sysfs, &nics).unwrap_or_default();
        let directory = |address: &DeviceAddress| {
            let devices = sysfs.join("bus").join(address.bus()).join("devices");
            devices.join(&**address)
        };
        accelerators.retain(|it| !is_passed_through(&directory(&it.address)));
        if accelerators.is_empty() {
            return None;
        }
        let all = nics
            .into_iter()
            .chain(accelerators.iter().map(|it| &it.address));
        // `DMA`, `DMA-FQ`: the kernel's own translation (`iommu_group_show_type()`, `drivers/iommu/iommu.c`)
        let is_translated = |address: &&DeviceAddress| {
            let kind = read(&directory(address).join("iommu_group"), "type");
            kind.is_some_and(|kind| kind.starts_with("DMA"))
        };
        let peers = PEER_MEMORY.iter();
        let peers = peers.filter(|(_, places)| places.iter().any(|it| sysfs.join(it).exists()));
        let nvidia = fs::read_to_string(procfs.join("driver/nvidia/version")).ok();
        Some(GpuDirect {
            translated: all.filter(is_translated).cloned().collect(),
            vendors: accelerators.iter().map(|it| it.vendor.clone()).collect(),
            peer_memory: peers.map(|(vendor, _)| (*vendor).to_owned()).collect(),
            nvidia: nvidia.map(|text| match text.contains("Open Kernel Module") {
                true => NvidiaModules::Open,
                false => NvidiaModules::Proprietary,
            }),
            amdgpu: sysfs.join("module/amdgpu").exists(),
            symbols: self.symbols(sysfs, procfs),
        })
    }

    fn symbols(&mut self, sysfs: &Path, procfs: &Path) -> Option<Symbols> {
        let modules = fs::read_dir(sysfs.join("module")).into_iter().flatten();
        let modules = modules.flatten().map(|it| it.ino()).collect();
        match &self.known {
            Some((before, symbols)) if *before == modules => symbols.clone(),
            _ => {
                let symbols = File::open(procfs.join("kallsyms"))
                    .ok()
                    .and_then(|file| parse(BufReader::new(file)));
                self.known = Some((modules, symbols.clone()));
                symbols
            }
        }
    }
}

/// Parses lines `0000000000000000 t mlx5_ib_reg_user_mr_dmabuf	[mlx5_ib]`; the module is absent if it is built in, and
/// the address is 0 for all but root. `None`: no symbol, or an error.
fn parse(mut list: impl BufRead) -> Option<Symbols> {
    let mut symbols = Symbols::default();
    let (mut has_core, mut has_any) = (false, false);
    let mut line = String::new();
    while list.read_line(&mut line).ok()? > 0 {
        let mut words = line.split_ascii_whitespace().skip(2);
        if let Some(name) = words.next() {
            has_any = true;
            // compilers append `.llvm.123` and the like
            let name = name.split('.').next().unwrap_or_default();
            has_core |= name.starts_with(CORE_IMPORT);
            symbols.peer_memory |= name == REGISTER_PEER;
            if let Some(prefix) = name.strip_suffix(IMPORT) {
                let module = words.next().unwrap_or(prefix);
                let module = module.trim_matches(['[', ']']);
                symbols.dma_buf.insert(module.to_owned());
            }
        }
        line.clear();
    }
    if !has_core {
        symbols.dma_buf.clear();
    }
    has_any.then_some(symbols)
}

/// Returns true if a virtual machine has the function at `directory`.
fn is_passed_through(directory: &Path) -> bool {
    let driver = link_name(directory, "driver");
    driver.is_some_and(|it| PASS_THROUGH.contains(&it.as_str()))
}
