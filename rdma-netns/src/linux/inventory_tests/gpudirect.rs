// SPDX-License-Identifier: Apache-2.0
//! Tests of the state that determines whether GPUDirect works.

use super::*;
use crate::{
    GpuDirect, GpuDirectReader,
    gpudirect::{NvidiaModules, Symbols},
};

const GPU: &str = "0000:1b:00.0";

/// Content of `/proc/driver/nvidia/version` with driver 580.
const OPEN: &str = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)";
const PROPRIETARY: &str =
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024";

const SYMBOLS: &str = "ffffffff81000000 T startup_64
0000000000000000 T ib_umem_dmabuf_get\t[ib_uverbs]
0000000000000000 t mlx5_ib_reg_user_mr_dmabuf\t[mlx5_ib]
0000000000000000 t hns_roce_reg_user_mr_dmabuf\t[hns_roce_hw_v2]
0000000000000000 t efa_reg_user_mr_dmabuf.llvm.7
0000000000000000 t erdma_reg_user_mr\t[erdma]";

/// A node with one GPU and the NIC at 0000:3b:00.0.
fn node() -> Node {
    let node = Node::new();
    node.pci(ROOT, GPU, "30200", "10DE:2330");
    node.pci(ROOT, "0000:3b:00.0", "20000", PF);
    node
}

fn read(node: &Node, reader: &mut GpuDirectReader) -> Option<GpuDirect> {
    let inventory = node.inventory();
    let nics = inventory.functions.iter().map(|it| &it.device.address);
    let (sysfs, procfs) = (node.path("sys"), node.path("proc"));
    let accelerators = &inventory.accelerators;
    reader.read((&sysfs, &procfs), accelerators, &nics.collect())
}

fn read_once(node: &Node) -> Option<GpuDirect> {
    read(node, &mut GpuDirectReader::default())
}

#[test]
fn a_node_without_gpus_of_its_own_has_no_conditions() {
    let node = Node::new();
    node.pci(ROOT, "0000:3b:00.0", "20000", PF);
    assert_eq!(read_once(&node), None);
    // a virtual machine has the GPU
    let gpu = node.pci(ROOT, GPU, "30200", "10DE:2330");
    let driver = format!("{gpu}/driver");
    node.link(&driver, "../../../../bus/pci/drivers/vfio-pci");
    assert_eq!(read_once(&node), None);
    fs::remove_file(node.path(&driver)).expect("unbound");
    node.link(&driver, "../../../../bus/pci/drivers/nvidia");
    assert!(read_once(&node).is_some());
}

#[test]
fn drivers_and_the_iommu_are_read() {
    let node = node();
    let vendors: BTreeSet<String> = ["10de".to_owned()].into();
    let bare = GpuDirect {
        vendors: vendors.clone(),
        ..GpuDirect::default()
    };
    assert_eq!(read_once(&node), Some(bare));
    node.file("proc/driver/nvidia/version", PROPRIETARY);
    let nvidia = |node: &Node| read_once(node).expect("conditions").nvidia;
    assert_eq!(nvidia(&node), Some(NvidiaModules::Proprietary));
    node.file("proc/driver/nvidia/version", OPEN);
    assert_eq!(nvidia(&node), Some(NvidiaModules::Open));
    for (directory, vendor) in [
        ("sys/module/nvidia_peermem", "10de"),
        ("sys/module/nv_peer_mem", "10de"),
        ("sys/kernel/mm/memory_peers/nv_mem_nc", "10de"),
        ("sys/kernel/memory_peers/amdkfd", "1002"),
    ] {
        node.directory(directory);
        let found = read_once(&node).expect("conditions").peer_memory;
        assert_eq!(found, [vendor.to_owned()].into(), "{directory}");
        fs::remove_dir(node.path(directory)).expect("removed");
    }
    for (address, group, kind) in [(GPU, 3, "DMA-FQ"), ("0000:3b:00.0", 4, "identity")] {
        node.file(&format!("sys/kernel/iommu_groups/{group}/type"), kind);
        let link = format!("sys/devices/{ROOT}/{address}/iommu_group");
        node.link(&link, format!("../../../../kernel/iommu_groups/{group}"));
    }
    let found = read_once(&node).expect("conditions").translated;
    let found: Vec<&str> = found.iter().map(|it| &**it).collect();
    assert_eq!(found, [GPU]);
}

/// Returns a configuration space with two capabilities: power budgeting, and ACS with the control register
/// `control`.
fn space(control: u16) -> Vec<u8> {
    let mut space = vec![0; 4096];
    space[0x100..0x104].copy_from_slice(&0x1401_0004_u32.to_le_bytes());
    space[0x140..0x144].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
    space[0x146..0x148].copy_from_slice(&control.to_le_bytes());
    space
}

#[test]
fn ports_between_a_gpu_and_a_nic_may_redirect() {
    let node = Node::new();
    let port = |place: &str, address: &str, space: &[u8]| {
        let port = node.pci(place, address, "60400", "1000:C030");
        fs::write(node.path(&port).join("config"), space).expect("written");
    };
    let (on, off) = (space(0x1d), space(0x19));
    let switch = format!("{ROOT}/0000:3c:00.0");
    port("pci0000:3a", "0000:3a:00.0", &on);
    port(ROOT, "0000:3c:00.0", &on);
    port(&switch, "0000:3d:00.0", &on);
    port(&switch, "0000:3d:01.0", &off);
    port(&switch, "0000:3d:02.0", &on[..64]);
    // another root port, with a NIC and no GPU below it
    port("pci0000:60", "0000:60:00.0", &on);
    for (place, address, class, id) in [
        ("0000:3d:00.0", "0000:3e:00.0", "30200", "10DE:2330"),
        ("0000:3d:01.0", "0000:3f:00.0", "20000", PF),
        ("0000:3d:02.0", "0000:40:00.0", "20000", PF),
    ] {
        node.pci(&format!("{switch}/{place}"), address, class, id);
    }
    node.pci("pci0000:60/0000:60:00.0", "0000:61:00.0", "20000", PF);
    let found = read_once(&node).expect("conditions").redirecting;
    let found: Vec<&str> = found.iter().map(|it| &**it).collect();
    assert_eq!(found, ["0000:3d:00.0"]);
}

#[test]
fn symbols_name_the_drivers_that_import() {
    let node = node();
    let symbols = || read_once(&node).expect("conditions").symbols;
    assert_eq!(symbols(), None);
    node.file("proc/kallsyms", "");
    assert_eq!(symbols(), None, "nothing was shown");
    node.file("proc/kallsyms", SYMBOLS);
    let importing = ["efa", "hns_roce_hw_v2", "mlx5_ib"].map(str::to_owned);
    let expected = Symbols {
        dma_buf: importing.into(),
        peer_memory: false,
    };
    assert_eq!(symbols(), Some(expected));
    // the symbols of a kernel with MLNX_OFED that does not import dma-bufs for RDMA
    let old = SYMBOLS.replace("ib_umem_dmabuf_get", "ib_register_peer_memory_client");
    node.file("proc/kallsyms", &old);
    let expected = Symbols {
        dma_buf: BTreeSet::new(),
        peer_memory: true,
    };
    assert_eq!(symbols(), Some(expected));
}

#[test]
fn symbols_are_read_again_when_a_module_came_or_went() {
    let node = node();
    node.directory("sys/module/mlx5_ib");
    node.file("proc/kallsyms", SYMBOLS);
    let mut reader = GpuDirectReader::default();
    let mut importing = || {
        let found = read(&node, &mut reader).expect("conditions");
        found.symbols.expect("symbols").dma_buf.len()
    };
    assert_eq!(importing(), 3);
    node.file(
        "proc/kallsyms",
        &SYMBOLS.replace("erdma_reg_user_mr", "erdma_reg_user_mr_dmabuf"),
    );
    assert_eq!(importing(), 3, "no module changed");
    node.directory("sys/module/erdma");
    assert_eq!(importing(), 4);
}
