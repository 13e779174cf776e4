// SPDX-License-Identifier: Apache-2.0
//! Reads the state that determines whether GPUDirect works, from sysfs and procfs.

use super::{
    devices::{link_name, read},
    pci_path::path,
};
use crate::{
    Accelerator, DeviceAddress, PciPath,
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

/// Paths in sysfs that show registered peer memory, by PCI vendor. NCCL (`src/transport/net_ib/gdr.cc`), UCX
/// (`src/uct/ib/base/ib_md.c`) and RCCL (`src/transport/net_ib.cc`) check the same paths.
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

/// Suffix of the functions that import dma-bufs, such as `mlx5_ib_reg_user_mr_dmabuf`. The functions of all drivers
/// have the name of the field of `struct ib_device_ops` as suffix (`drivers/infiniband/hw/*`).
const IMPORT: &str = "_reg_user_mr_dmabuf";
/// Common beginning of the names of functions in ib_uverbs. The functions with the suffix [`IMPORT`] call them. If the
/// kernel has none of them, no driver imports dma-bufs.
const CORE_IMPORT: &str = "ib_umem_dmabuf_get";
/// Function of `ib_core` by which modules register peer memory.
const REGISTER_PEER: &str = "ib_register_peer_memory_client";

/// Reads a node's GPUDirect state. The list of the kernel's symbols has some ten megabytes, so this type reads it
/// again only after a module was loaded or removed.
#[derive(Debug, Default)]
pub struct GpuDirectReader {
    /// Inodes of the loaded modules' directories, and the symbols that the kernel had with these modules.
    known: Option<(BTreeSet<u64>, Option<Symbols>)>,
}

impl GpuDirectReader {
    /// Returns the state of a node with these accelerators and NICs. `sysfs` and `procfs` are mount points. Returns
    /// `None` if the node has no accelerators, or passes all of them to virtual machines or programs.
    pub fn read(
        &mut self,
        (sysfs, procfs): (&Path, &Path),
        accelerators: &[Accelerator],
        nics: &BTreeSet<&DeviceAddress>,
    ) -> Option<GpuDirect> {
        let directory = |address: &DeviceAddress| address.directory(sysfs);
        let own = accelerators.iter();
        let own = own.filter(|it| !is_passed_through(&directory(&it.address)));
        let own: Vec<&Accelerator> = own.collect();
        if own.is_empty() {
            return None;
        }
        let nics = nics.iter().copied();
        let nic_paths: Vec<PciPath> = nics.clone().map(|it| path(&directory(it))).collect();
        let ports = own.iter().flat_map(|it| {
            let nics = nic_paths.iter();
            nics.flat_map(|nic| ports_between(&it.path, nic))
        });
        let ports: BTreeSet<&DeviceAddress> = ports.collect();
        let redirecting = ports.into_iter().filter(|it| redirects(&directory(it)));
        let redirecting = redirecting.cloned().collect();
        let all = nics.chain(own.iter().map(|it| &it.address));
        // `DMA`, `DMA-FQ`: the kernel itself makes the IOMMU translate addresses (`iommu_group_show_type()`,
        // `drivers/iommu/iommu.c`)
        let is_translated = |address: &&DeviceAddress| {
            let kind = read(&directory(address).join("iommu_group"), "type");
            kind.is_some_and(|kind| kind.starts_with("DMA"))
        };
        let peers = PEER_MEMORY.iter();
        let peers = peers.filter(|(_, places)| places.iter().any(|it| sysfs.join(it).exists()));
        let nvidia = fs::read_to_string(procfs.join("driver/nvidia/version")).ok();
        Some(GpuDirect {
            translated: all.filter(is_translated).cloned().collect(),
            redirecting,
            vendors: own.iter().map(|it| it.vendor.clone()).collect(),
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

/// Parses lines like `0000000000000000 t mlx5_ib_reg_user_mr_dmabuf [mlx5_ib]`. The line of a built-in driver names no
/// module. The kernel shows the address 0 to programs without root's rights. Returns `None` if the list has no symbol,
/// or after a read error.
fn parse(mut list: impl BufRead) -> Option<Symbols> {
    let mut symbols = Symbols::default();
    let (mut has_core, mut has_any) = (false, false);
    let mut line = String::new();
    while list.read_line(&mut line).ok()? > 0 {
        let mut words = line.split_ascii_whitespace().skip(2);
        if let Some(name) = words.next() {
            has_any = true;
            // compilers append suffixes like `.llvm.123`
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

/// Returns the ports between two functions: the ports below the last port that is above both functions. Returns none
/// if no port is above both functions.
fn ports_between<'a>(
    one: &'a PciPath,
    other: &'a PciPath,
) -> impl Iterator<Item = &'a DeviceAddress> {
    let pairs = one.bridges.iter().zip(&other.bridges);
    let common = pairs.take_while(|(one, other)| one == other).count();
    let below = move |path: &'a PciPath| path.bridges[common..].iter().filter(move |_| common > 0);
    below(one).chain(below(other))
}

/// Returns true if the port at `directory` redirects requests between functions below its switch to the root complex
/// (`PCI_ACS_RR` of the capability `PCI_EXT_CAP_ID_ACS`, `include/uapi/linux/pci_regs.h`).
fn redirects(directory: &Path) -> bool {
    const FIRST: usize = 0x100;
    const ACS: u16 = 0x0d;
    const CONTROL: usize = 6;
    const REQUEST_REDIRECT: u16 = 4;
    // without CAP_SYS_ADMIN the file has 64 bytes (`pci_read_config()`, `drivers/pci/pci-sysfs.c`)
    let space = fs::read(directory.join("config")).unwrap_or_default();
    let word = |place: usize| {
        let bytes = space.get(place..place + 2)?;
        Some(u16::from_le_bytes(bytes.try_into().ok()?))
    };
    let mut place = FIRST;
    // the limit also ends the loop if the list of capabilities is circular
    for _ in 0..space.len() / 8 {
        let Some((id, next)) = word(place).zip(word(place + 2)) else {
            return false;
        };
        if id == ACS {
            return word(place + CONTROL).is_some_and(|it| it & REQUEST_REDIRECT != 0);
        }
        place = usize::from(next >> 4);
        if place < FIRST {
            return false;
        }
    }
    false
}

/// Returns true if the driver of the function at `directory` passes the function to a virtual machine or a program.
fn is_passed_through(directory: &Path) -> bool {
    let driver = link_name(directory, "driver");
    driver.is_some_and(|it| PASS_THROUGH.contains(&it.as_str()))
}
