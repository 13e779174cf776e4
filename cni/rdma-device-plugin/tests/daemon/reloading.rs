//! The configuration and the hardware change while the daemon runs.

use crate::{FIRST, HCA, Machine, Running, SECOND, TWO, ids, start};
use integration::kubelet::{DeviceManager, Wish};
use nix::sys::signal::Signal;
use std::{fs, os::unix::fs::symlink, time::Duration};

/// As [`TWO`], with more ids of the first resource, and another one in the place of the second.
const OTHER: &str = r#"{"resources":[
    {"name":"rdma/hca","kind":"shared","count":16,"devices":[{"rdma":"mlx5_0"}]},
    {"name":"rdma/new","kind":"exclusive","devices":[{"rdma":"mlx5_1"}]}
]}"#;

#[test]
fn a_file_written_in_place_is_read_again() {
    let node = Running::with(TWO)
        .listed("rdma/hca", 8)
        .listed("rdma/nic", 1);
    let wish = Wish::new("a", "main", "rdma/hca", 1);
    let held = node.kubelet.allocate(&wish).expect("allocated");
    node.machine.configure(OTHER);
    node.has("rdma/hca", 16);
    node.has("rdma/new", 1);
    // the one that stayed kept its registration and its stream; its ids are what they were
    let times = |resource: &str| {
        let all = node.kubelet.registrations();
        all.iter().filter(|it| it.resource == resource).count()
    };
    assert_eq!(times("rdma/hca"), 1);
    assert_eq!(node.kubelet.resource("rdma/hca").expect("known").lists, 2);
    node.kubelet
        .before_start("rdma/hca", &held.ids)
        .expect("an allocation outlives the reload");
    // the one that went told kubelet so, and is not there any more
    node.kubelet
        .wait_for("rdma/nic", "an empty list, and no stream", |it| {
            it.devices.is_empty() && it.streams == 0
        });
    let socket = "kubelet/device-plugins/rdma-device-plugin-rdma_nic.sock";
    integration::wait::until("its socket goes", || !node.machine.path(socket).exists());
    node.daemon.says("rdma/nic: no longer offered");
}

#[test]
fn a_file_that_is_replaced_is_read_again() {
    let node = Running::with(TWO).listed("rdma/hca", 8);
    node.machine.write("etc/config.json.new", OTHER);
    let file = node.machine.path("etc/config.json");
    fs::rename(node.machine.path("etc/config.json.new"), file).expect("renamed");
    node.has("rdma/hca", 16);
}

#[test]
fn a_mounted_config_map_changes_by_a_link() {
    let machine = Machine::with(&[FIRST, SECOND]);
    let version = |name: &str, text: &str| {
        fs::create_dir(machine.path(&format!("etc/{name}"))).expect("a directory");
        machine.write(&format!("etc/{name}/config.json"), text);
    };
    let exchange = |name: &str| {
        symlink(name, machine.path("etc/..data_tmp")).expect("a link");
        fs::rename(machine.path("etc/..data_tmp"), machine.path("etc/..data")).expect("renamed");
    };
    version("..2026_a", TWO);
    exchange("..2026_a");
    symlink("..data/config.json", machine.path("etc/config.json")).expect("a link");
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = start(&machine);
    kubelet.wait_for("rdma/hca", "8 ids", |it| it.devices.len() == 8);
    for (name, old, text, ids) in [
        ("..2026_b", "..2026_a", OTHER, 16),
        ("..2026_c", "..2026_b", TWO, 8),
    ] {
        version(name, text);
        exchange(name);
        fs::remove_dir_all(machine.path(&format!("etc/{old}"))).expect("removed");
        kubelet.wait_for("rdma/hca", "other ids", |it| it.devices.len() == ids);
    }
    assert_eq!(daemon.count("a new configuration is in force"), 2);
}

#[test]
fn a_broken_file_changes_nothing_and_is_told_once() {
    let node = Running::with(TWO).listed("rdma/hca", 8);
    let lists = node.kubelet.resource("rdma/hca").expect("known").lists;
    node.machine
        .configure(r#"{"resources":[{"name":"rdma/hca"}]}"#);
    node.daemon.says("the configuration stays as it was: ");
    for times in 1..=2 {
        node.daemon.signal(Signal::SIGHUP);
        node.daemon.says_times("SIGHUP", times);
    }
    // an answer to this comes after both are dealt with
    let allocated = node.kubelet.ask_for("rdma/hca", &[&ids(&["0"])]);
    allocated.expect("it still serves");
    node.machine.configure(OTHER);
    node.has("rdma/hca", 16);
    assert_eq!(node.daemon.count("the configuration stays as it was"), 1);
    let known = node.kubelet.resource("rdma/hca").expect("known");
    assert_eq!(known.lists, lists + 1, "no list in between");
}

#[test]
fn the_same_file_again_is_no_news() {
    let node = Running::with(TWO)
        .listed("rdma/hca", 8)
        .listed("rdma/nic", 1);
    node.machine.configure(TWO);
    node.daemon.signal(Signal::SIGHUP);
    node.daemon.says("SIGHUP");
    node.machine.configure(OTHER);
    node.has("rdma/hca", 16);
    assert_eq!(node.kubelet.resource("rdma/hca").expect("known").lists, 2);
    assert_eq!(node.daemon.count("a new configuration is in force"), 1);
}

#[test]
fn a_node_without_rdma_waits_for_devices() {
    let machine = Machine::bare();
    machine.configure(HCA);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = start(&machine);
    daemon.says("nothing is advertised on this node");
    assert!(!kubelet.within(Duration::from_millis(300), "rdma/hca", |it| it.is_some()));
    machine.plug(&FIRST);
    daemon.signal(Signal::SIGHUP);
    kubelet.wait_for("rdma/hca", "1000 ids", |it| it.healthy().len() == 1000);
}

#[test]
fn a_nic_that_is_plugged_in_is_offered() {
    let machine = Machine::with(&[FIRST]);
    machine.configure(TWO);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = start(&machine);
    kubelet.wait_for("rdma/hca", "8 ids", |it| it.healthy().len() == 8);
    assert!(kubelet.resource("rdma/nic").is_none());
    machine.plug(&SECOND);
    daemon.signal(Signal::SIGHUP);
    kubelet.wait_for("rdma/nic", "the NIC", |it| it.healthy().len() == 1);
    machine.unplug(&SECOND);
    daemon.signal(Signal::SIGHUP);
    kubelet.wait_for("rdma/nic", "no NIC", |it| it.healthy().is_empty());
    machine.plug(&SECOND);
    daemon.signal(Signal::SIGHUP);
    kubelet.wait_for("rdma/nic", "the NIC again", |it| it.healthy().len() == 1);
    assert_eq!(kubelet.resource("rdma/hca").expect("known").lists, 1);
}
