// SPDX-License-Identifier: Apache-2.0
//! Tests of the label file for node-feature-discovery.

use crate::{
    FIRST, HCA, Machine, SECOND, TWO,
    program::{command, run, start_with},
};
use integration::{Daemon, kubelet::DeviceManager, wait};
use nix::sys::signal::Signal;
use rdma_device_plugin::node_features::is_valid;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

const PREFIX: &str = "feature.node.kubernetes.io/rdma-nics.";

fn machine(configuration: &str) -> Machine {
    let machine = Machine::with(&[FIRST]);
    speed(&machine, FIRST.netdev, "200000\n");
    machine.configure(configuration);
    machine
}

fn speed(machine: &Machine, netdev: &str, speed: &str) {
    machine.write(&format!("sys/class/net/{netdev}/speed"), speed);
}

fn directory(machine: &Machine) -> PathBuf {
    machine.path("features.d")
}

fn file(machine: &Machine) -> PathBuf {
    directory(machine).join("rdma-device-plugin")
}

#[track_caller]
fn start(machine: &Machine) -> Daemon {
    let directory = directory(machine);
    let directory = directory.to_str().expect("a path");
    let address = ["--metrics-address", "127.0.0.1:0"];
    start_with(
        machine,
        &[&address[..], &["--node-features", directory]].concat(),
    )
}

/// Returns the labels of the file without its comments. Asserts that each label is valid.
fn labels(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (key, value) = line.split_once('=').expect("a label with a value");
            assert!(is_valid(key, value), "{line}");
            line.strip_prefix(PREFIX).expect("the prefix").to_owned()
        })
        .collect()
}

#[track_caller]
fn are(machine: &Machine, wanted: &[&str]) {
    wait::until(&format!("{wanted:?}"), || labels(&file(machine)) == wanted);
    let files = fs::read_dir(directory(machine)).expect("a directory");
    assert_eq!(files.count(), 1, "nothing unfinished is left");
}

#[test]
fn labels_are_as_the_node_is_and_written_when_they_are_others() {
    let machine = machine(HCA);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = start(&machine);
    let one = [
        "bonds=0",
        "count=1",
        "link-layer=ethernet",
        "mode=shared",
        "speed=200",
        "vendor-15b3=true",
    ];
    are(&machine, &one);
    let inode = || fs::metadata(file(&machine)).expect("the file").ino();
    let before = inode();
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_log("SIGHUP");
    kubelet.wait_for("rdma/hca", "its list", |it| it.healthy().len() == 1000);
    thread::sleep(Duration::from_millis(300));
    assert_eq!(inode(), before, "written although nothing was new");
    machine.plug(&SECOND);
    speed(&machine, SECOND.netdev, "100000\n");
    daemon.signal(Signal::SIGHUP);
    let mut two = one;
    (two[1], two[4]) = ("count=2", "speed=100");
    are(&machine, &two);
    assert_ne!(inode(), before, "it is replaced as a whole");
    machine.configure(TWO);
    two[3] = "mode=mixed";
    are(&machine, &two);
    // labels stay while a daemon is replaced, and the next daemon keeps labels that it cannot
    // determine
    daemon.end(Signal::SIGTERM);
    fs::remove_file(machine.path("sys/class/net/ens2/speed")).expect("removed");
    let _next = start(&machine);
    kubelet.wait_for("rdma/hca", "a stream", |it| it.streams == 1 && it.lists > 2);
    thread::sleep(Duration::from_millis(300));
    are(&machine, &two);
}

#[test]
fn with_gpus_a_label_names_the_memory_registration_of_nics() {
    let machine = machine(HCA);
    machine.accelerator("0000:62:00.0", 0);
    fs::create_dir_all(machine.path("proc/driver/nvidia")).expect("a directory");
    let _kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = start(&machine);
    let has = |label: &str| {
        let label = format!("gpudirect={label}");
        wait::until("the file", || file(&machine).exists());
        daemon.signal(Signal::SIGHUP);
        wait::until(&label, || labels(&file(&machine)).contains(&label));
    };
    has("none");
    let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n";
    machine.write("proc/driver/nvidia/version", version);
    has("unknown");
    fs::create_dir_all(machine.path("sys/module/nvidia_peermem")).expect("a directory");
    has("peer-memory");
    let symbols =
        "0 T ib_umem_dmabuf_get\t[ib_uverbs]\n0 t mlx5_ib_reg_user_mr_dmabuf\t[mlx5_ib]\n";
    machine.write("proc/kallsyms", symbols);
    fs::create_dir_all(machine.path("sys/module/mlx5_ib")).expect("a directory");
    has("dma-buf");
}

#[test]
fn a_node_without_rdma_has_none() {
    let machine = Machine::bare();
    machine.configure(HCA);
    let _daemon = start(&machine);
    are(&machine, &["count=0"]);
}

#[test]
fn without_the_option_nothing_is_written() {
    let machine = machine(HCA);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let _daemon = crate::start(&machine);
    kubelet.wait_for("rdma/hca", "its list", |it| it.healthy().len() == 1000);
    assert!(!directory(&machine).exists());
}

#[test]
fn the_leading_daemon_writes_node_features() {
    let machine = machine(HCA);
    let _kubelet = DeviceManager::started(&machine.path("kubelet"));
    let old = start(&machine);
    wait::until("the old one has written", || file(&machine).exists());
    let new = start(&machine);
    old.wait_for_log("a newer daemon runs on this node");
    new.wait_for_log("metrics are at");
    let writes = |count: &str| {
        new.signal(Signal::SIGHUP);
        wait::until("the new one has written", || {
            labels(&file(&machine)).contains(&count.to_owned())
        });
    };
    machine.plug(&SECOND);
    writes("count=2");
    fs::remove_file(file(&machine)).expect("removed");
    machine.unplug(&SECOND);
    old.signal(Signal::SIGHUP);
    old.wait_for_log("SIGHUP");
    thread::sleep(Duration::from_millis(500));
    assert!(!file(&machine).exists(), "it does not lead any more");
    writes("count=1");
}

#[test]
fn a_directory_that_cannot_exist_is_reported_and_stops_nothing() {
    let machine = machine(HCA);
    fs::write(directory(&machine), "").expect("written");
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = start(&machine);
    daemon.wait_for_log("cannot write");
    kubelet.wait_for("rdma/hca", "its list", |it| it.healthy().len() == 1000);
}

#[test]
fn release_takes_the_file_away() {
    let machine = machine(HCA);
    let daemon = start(&machine);
    wait::until("it has written", || file(&machine).exists());
    daemon.end(Signal::SIGTERM);
    assert!(
        file(&machine).exists(),
        "it stays while a daemon is replaced"
    );
    let release = || {
        let mut command = command(&machine);
        let node_features = command.arg("--node-features").arg(directory(&machine));
        let done = run(node_features.arg("--release"));
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).expect("text")
    };
    let expected = format!("{:?}: removed\n", file(&machine));
    assert!(release().ends_with(&expected));
    assert!(!file(&machine).exists());
    assert!(!release().contains("removed"), "it can be repeated");
}
