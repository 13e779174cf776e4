// SPDX-License-Identifier: Apache-2.0
//! Runs `doctor` on the sysfs tree of a node with a GPU.

use doctor::{Paths, examine, gather};
use fake_kernel::{FakeKernel, Nic, World};
use rdma_netns::RdmaMode;
use std::{fs, path::Path};

fn write(root: &Path, file: &str, text: &str) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    fs::write(path, text).expect("written");
}

/// Returns `doctor`'s findings about GPU memory on a node with one mlx5 NIC and the files below `root`.
fn memory_findings(root: &Path) -> Vec<String> {
    let mut world = World::new(Some(RdmaMode::Shared));
    world.plug(Nic::physical("0000:3b:00.0", "ens1", "mlx5_0"));
    let paths = Paths {
        root: root.to_owned(),
        ..Paths::default()
    };
    let findings = examine::examine(&gather::gather(&FakeKernel::new(world), &paths));
    let about = findings
        .into_iter()
        .filter(|it| it.what.contains("memory of"));
    about.map(|it| it.what).collect()
}

#[test]
fn the_tree_below_the_root_decides() {
    let root = tempfile::tempdir().expect("a directory");
    let root = root.path();
    assert_eq!(memory_findings(root), [""; 0], "no GPU");
    let gpu = "sys/bus/pci/devices/0000:62:00.0/uevent";
    write(root, gpu, "PCI_CLASS=30200\nPCI_ID=10DE:2330\n");
    let cannot = "mlx5_ib cannot register memory of NVIDIA's GPUs: NVIDIA's driver is not loaded";
    assert_eq!(memory_findings(root), [cannot]);
    let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n";
    write(root, "proc/driver/nvidia/version", version);
    let symbols =
        "0 T ib_umem_dmabuf_get\t[ib_uverbs]\n0 t mlx5_ib_reg_user_mr_dmabuf\t[mlx5_ib]\n";
    write(root, "proc/kallsyms", symbols);
    let can = "mlx5_ib can register memory of NVIDIA's GPUs by dma-buf";
    assert_eq!(memory_findings(root), [can]);
}
