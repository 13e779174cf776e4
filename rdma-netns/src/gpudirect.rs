// SPDX-License-Identifier: Apache-2.0
//! Registration of accelerators' memory with RDMA devices (GPUDirect RDMA). There are two mechanisms:
//!
//! - **dma-buf**: the accelerator's driver exports memory, and the RDMA driver imports it (`ibv_reg_dmabuf_mr(3)`,
//!   `UVERBS_METHOD_REG_DMABUF_MR`, `drivers/infiniband/core/uverbs_std_types_mr.c`, Linux 5.12). NVIDIA's open kernel
//!   modules export CUDA allocations, and its proprietary modules do not (NVIDIA's driver README, "Open Linux Kernel
//!   Modules").
//! - **peer memory**: the accelerator vendor's module registers with `ib_core` by `ib_register_peer_memory_client()`.
//!   Mainline Linux lacks this function. Without it `nvidia_peermem` does not load (`nv_mem_client_init()`,
//!   `kernel-open/nvidia-peermem/nvidia-peermem.c`).

use crate::{Device, DeviceAddress};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

pub(crate) const NVIDIA: &str = "10de";
pub(crate) const AMD: &str = "1002";

/// Modules of NVIDIA's RDMA stack. They use peer memory if `ib_core` supports it.
const PEER_MEMORY_USERS: [&str; 2] = ["mlx4_ib", "mlx5_ib"];

/// The node's state that determines whether its RDMA devices can register its accelerators' memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct GpuDirect {
    /// PCI vendors of the accelerators, without accelerators that a driver such as `vfio-pci` passes to a virtual
    /// machine or a program.
    pub vendors: BTreeSet<String>,
    /// PCI vendors whose modules have registered peer memory with `ib_core`.
    pub peer_memory: BTreeSet<String>,
    /// Kernel modules of NVIDIA's driver. `None`: they are not loaded.
    pub nvidia: Option<NvidiaModules>,
    /// True if the module `amdgpu` is loaded.
    pub amdgpu: bool,
    /// Symbols of the kernel. `None`: the kernel's symbols cannot be read.
    pub symbols: Option<Symbols>,
    /// Accelerators and NICs whose addresses the IOMMU translates.
    pub translated: BTreeSet<DeviceAddress>,
    /// Ports on the path between a GPU and a NIC whose ACS setting redirects the traffic through the CPU. Empty without
    /// `CAP_SYS_ADMIN`, because the kernel then hides this setting.
    pub redirecting: BTreeSet<DeviceAddress>,
}

/// Kernel modules of NVIDIA's driver (`/proc/driver/nvidia/version`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NvidiaModules {
    /// NVIDIA's open kernel modules.
    Open,
    /// NVIDIA's proprietary kernel modules.
    Proprietary,
}

/// Kernel symbols that show support for GPUDirect (`/proc/kallsyms`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Symbols {
    /// Modules of RDMA drivers that import dma-bufs.
    pub dma_buf: BTreeSet<String>,
    /// True if `ib_core` supports peer memory.
    pub peer_memory: bool,
}

/// Ability of an RDMA driver to register the memory of one vendor's accelerators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registration {
    /// The driver can register the memory by dma-buf.
    DmaBuf,
    /// The driver can register the memory by peer memory.
    PeerMemory,
    /// The driver cannot register the memory.
    Impossible {
        /// Reason why registration is impossible.
        why: String,
        /// Advice on how to make registration possible.
        remedy: String,
    },
    /// It is unknown whether the driver can register the memory. The text is the reason.
    Unknown(String),
}

impl Registration {
    /// Returns the name of the variant for reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::DmaBuf => "dma-buf",
            Self::PeerMemory => "peer-memory",
            Self::Impossible { .. } => "none",
            Self::Unknown(_) => "unknown",
        }
    }
}

impl GpuDirect {
    /// Returns the registration for each pair of an accelerator vendor and an RDMA driver. The RDMA drivers are the
    /// drivers of the RDMA devices that `makers` have made.
    pub fn registrations<'a>(
        &'a self,
        makers: impl Iterator<Item = &'a Device>,
    ) -> Vec<(&'a str, &'a str, Registration)> {
        let modules: BTreeSet<&str> = makers.filter_map(Device::rdma_module).collect();
        let of = |vendor: &'a str| {
            let modules = modules.iter().copied();
            modules.map(move |module| (vendor, module, self.registration(vendor, module)))
        };
        self.vendors.iter().flat_map(|vendor| of(vendor)).collect()
    }

    /// Returns the registration for accelerators of the PCI vendor `vendor` and the RDMA driver `module`.
    fn registration(&self, vendor: &str, module: &str) -> Registration {
        let imports = self.symbols.as_ref().map(|it| it.dma_buf.contains(module));
        let has_peer_memory = self.peer_memory.contains(vendor);
        let exports = match vendor {
            NVIDIA => self.nvidia.map(|it| it == NvidiaModules::Open),
            // whether the accelerator's driver exports dma-bufs depends on the kernel's configuration and on the
            // driver's version
            _ => None,
        };
        if exports == Some(true) && imports == Some(true) {
            return Registration::DmaBuf;
        }
        let may_use_peers = PEER_MEMORY_USERS.contains(&module);
        if has_peer_memory && may_use_peers {
            return Registration::PeerMemory;
        }
        let (driver, is_loaded, peer_module) = match vendor {
            NVIDIA => ("NVIDIA's driver", self.nvidia.is_some(), "nvidia_peermem"),
            AMD => ("amdgpu", self.amdgpu, "amdgpu"),
            _ => return Registration::Unknown("the support of their driver is unknown".to_owned()),
        };
        if !is_loaded {
            return Registration::Impossible {
                why: format!("{driver} is not loaded"),
                remedy: format!("load {driver} if pods use these GPUs"),
            };
        }
        if has_peer_memory {
            return Registration::Unknown(format!(
                "{peer_module} has registered peer memory, but {module} possibly does not use it"
            ));
        }
        let mut lacks = vec![];
        let mut remedies = vec![];
        if exports == Some(false) {
            lacks.push("NVIDIA's proprietary kernel modules export no dma-bufs".to_owned());
            remedies.push("install NVIDIA's open kernel modules".to_owned());
        }
        if imports == Some(false) {
            lacks.push(format!("{module} imports no dma-bufs"));
            remedies.push(format!(
                "use a kernel or an RDMA stack whose {module} imports dma-bufs"
            ));
        }
        if lacks.is_empty() {
            return Registration::Unknown(match imports {
                None => "/proc/kallsyms is unreadable".to_owned(),
                Some(_) => format!(
                    "it depends on CONFIG_PCI_P2PDMA, CONFIG_DMABUF_MOVE_NOTIFY and the version of {driver}"
                ),
            });
        }
        let by_dma_buf = remedies.join(", and ");
        let remedy = match &self.symbols {
            Some(symbols) if symbols.peer_memory && may_use_peers && vendor == NVIDIA => {
                format!("modprobe nvidia_peermem; or {by_dma_buf}")
            }
            _ => by_dma_buf,
        };
        let of_peer_memory = match vendor {
            NVIDIA => "nvidia_peermem is not loaded",
            _ => "amdgpu has registered no peer memory",
        };
        Registration::Impossible {
            why: format!("{}, and {of_peer_memory}", lacks.join(", ")),
            remedy,
        }
    }
}

/// Returns the name of the accelerators of the PCI vendor `vendor`.
pub fn accelerators_of(vendor: &str) -> String {
    match vendor {
        NVIDIA => "NVIDIA's GPUs".to_owned(),
        AMD => "AMD's GPUs".to_owned(),
        vendor => format!("accelerators of PCI vendor {vendor}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a node with accelerators of `vendor`, `amdgpu`, NVIDIA's open modules, and an `mlx5_ib` that imports
    /// dma-bufs.
    fn node(vendor: &str) -> GpuDirect {
        GpuDirect {
            vendors: [vendor.to_owned()].into(),
            nvidia: Some(NvidiaModules::Open),
            amdgpu: true,
            symbols: Some(Symbols {
                dma_buf: ["mlx5_ib".to_owned()].into(),
                peer_memory: false,
            }),
            ..GpuDirect::default()
        }
    }

    #[track_caller]
    fn is(node: &GpuDirect, vendor: &str, module: &str, name: &str, text: &str) {
        let found = node.registration(vendor, module);
        let text_of = match &found {
            Registration::Impossible { why, remedy } => format!("{why} -> {remedy}"),
            Registration::Unknown(why) => why.clone(),
            _ => String::new(),
        };
        assert_eq!((found.name(), &*text_of), (name, text));
    }

    #[test]
    fn nvidias_open_modules_export_and_the_proprietary_ones_need_peer_memory() {
        let mut node = node(NVIDIA);
        is(&node, NVIDIA, "mlx5_ib", "dma-buf", "");
        is(
            &node,
            NVIDIA,
            "erdma",
            "none",
            "erdma imports no dma-bufs, and nvidia_peermem is not loaded -> use a kernel or an RDMA stack whose erdma \
             imports dma-bufs",
        );
        node.nvidia = Some(NvidiaModules::Proprietary);
        is(
            &node,
            NVIDIA,
            "mlx5_ib",
            "none",
            "NVIDIA's proprietary kernel modules export no dma-bufs, and nvidia_peermem is not loaded -> install \
             NVIDIA's open kernel modules",
        );
        node.symbols.as_mut().expect("symbols").peer_memory = true;
        is(
            &node,
            NVIDIA,
            "mlx5_ib",
            "none",
            "NVIDIA's proprietary kernel modules export no dma-bufs, and nvidia_peermem is not loaded -> modprobe \
             nvidia_peermem; or install NVIDIA's open kernel modules",
        );
        node.peer_memory.insert(NVIDIA.to_owned());
        is(&node, NVIDIA, "mlx5_ib", "peer-memory", "");
        let why = "nvidia_peermem has registered peer memory, but erdma possibly does not use it";
        is(&node, NVIDIA, "erdma", "unknown", why);
        node.nvidia = None;
        node.peer_memory.clear();
        let why = "NVIDIA's driver is not loaded -> load NVIDIA's driver if pods use these GPUs";
        is(&node, NVIDIA, "mlx5_ib", "none", why);
    }

    #[test]
    fn without_symbols_only_the_certain_is_reported() {
        let mut node = GpuDirect {
            symbols: None,
            ..node(NVIDIA)
        };
        let why = "/proc/kallsyms is unreadable";
        is(&node, NVIDIA, "mlx5_ib", "unknown", why);
        node.nvidia = Some(NvidiaModules::Proprietary);
        let why = "NVIDIA's proprietary kernel modules export no dma-bufs, and nvidia_peermem is not loaded -> \
                   install NVIDIA's open kernel modules";
        is(&node, NVIDIA, "mlx5_ib", "none", why);
        node.peer_memory.insert(NVIDIA.to_owned());
        is(&node, NVIDIA, "mlx5_ib", "peer-memory", "");
    }

    #[test]
    fn amd_and_other_vendors_report_less() {
        let mut node = node(AMD);
        let why =
            "it depends on CONFIG_PCI_P2PDMA, CONFIG_DMABUF_MOVE_NOTIFY and the version of amdgpu";
        is(&node, AMD, "mlx5_ib", "unknown", why);
        let why = "erdma imports no dma-bufs, and amdgpu has registered no peer memory -> use a kernel or an RDMA \
                   stack whose erdma imports dma-bufs";
        is(&node, AMD, "erdma", "none", why);
        node.peer_memory.insert(AMD.to_owned());
        is(&node, AMD, "mlx5_ib", "peer-memory", "");
        let why = "the support of their driver is unknown";
        is(&node, "8086", "mlx5_ib", "unknown", why);
        node.amdgpu = false;
        node.peer_memory.clear();
        let why = "amdgpu is not loaded -> load amdgpu if pods use these GPUs";
        is(&node, AMD, "mlx5_ib", "none", why);
    }
}
