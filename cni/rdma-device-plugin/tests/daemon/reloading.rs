// SPDX-License-Identifier: Apache-2.0
//! Tests of changes of the configuration and the hardware while the daemon runs.

use crate::{
    FIRST, HCA, Machine, Running, SECOND, TWO, ids, registering::settled, socket_of, start,
};
use integration::kubelet::{AllocationRequest, DeviceManager};
use nix::sys::signal::Signal;
use rdma_resources::{Grants, Published};
use std::{fs, os::unix::fs::symlink, time::Duration};

/// Configuration like [`TWO`], with more ids of the first resource, and with another resource in place of the
/// second one.
const OTHER: &str = r#"{"resources":[
    {"name":"rdma/hca","kind":"shared","count":16,"devices":[{"rdma":"mlx5_0"}]},
    {"name":"rdma/new","kind":"exclusive","devices":[{"rdma":"mlx5_1"}]}
]}"#;

#[test]
fn a_file_written_in_place_is_read_again() {
    let node = Running::with(TWO)
        .listed("rdma/hca", 8)
        .listed("rdma/nic", 1);
    let request = AllocationRequest::new("a", "main", "rdma/hca", 1);
    let held = node.kubelet.allocate(&request).expect("allocated");
    let socket = socket_of(&node.machine, "rdma_nic");
    node.machine.configure(OTHER);
    node.has("rdma/hca", 16);
    node.has("rdma/new", 1);
    // the resource that stayed kept its registration, its stream and its ids
    let times = |resource: &str| {
        let all = node.kubelet.registrations();
        all.iter().filter(|it| it.resource == resource).count()
    };
    assert_eq!(times("rdma/hca"), 1);
    assert_eq!(node.kubelet.resource("rdma/hca").expect("known").lists, 2);
    node.kubelet
        .before_start("rdma/hca", &held.ids)
        .expect("an allocation outlives the reload");
    // the plugin of the removed resource sent an empty list to kubelet, and has ended
    node.kubelet
        .wait_for("rdma/nic", "an empty list, and no stream", |it| {
            it.devices.is_empty() && it.streams == 0
        });
    integration::wait::until("its socket goes", || !socket.exists());
    node.daemon.wait_for_log("rdma/nic: no longer offered");
}

/// Returns the addresses of the devices that the daemon granted for an id, as `rdma-cni` reads them.
#[track_caller]
fn granted(node: &Running, resource: &str, id: &str) -> Vec<String> {
    let grants = Grants::new(&node.machine.path("state"));
    let grant = grants.read(resource, id).expect("read").expect("a grant");
    let devices = grant.devices.iter();
    devices.map(|it| it.address.to_string()).collect()
}

#[test]
fn sighup_keeps_the_devices_of_containers() {
    let node = Running::with(TWO)
        .listed("rdma/hca", 8)
        .listed("rdma/nic", 1);
    let held = ["rdma/hca", "rdma/nic"].map(|resource| {
        let request = AllocationRequest::new("a", "main", resource, 1);
        node.kubelet.allocate(&request).expect("allocated")
    });
    for times in 1..=3 {
        node.daemon.signal(Signal::SIGHUP);
        node.daemon.wait_for_log_times("SIGHUP", times);
    }
    let request = AllocationRequest::new("b", "main", "rdma/hca", 1);
    let next = node.kubelet.allocate(&request).expect("allocated");
    assert_ne!(next.ids, held[0].ids);
    for (allocation, address) in held.iter().zip([FIRST.address, SECOND.address]) {
        let (resource, id) = (&allocation.resource, &allocation.ids[0]);
        assert_eq!(granted(&node, resource, id), [address]);
        let known = node.kubelet.resource(resource).expect("known");
        assert_eq!((known.lists, known.streams), (1, 1), "{resource}");
        assert!(known.healthy().contains(id.as_str()), "{resource}");
        let started = node.kubelet.before_start(resource, &allocation.ids);
        started.expect("it is started again");
    }
    assert_eq!(node.kubelet.registrations().len(), 2);
}

#[test]
fn an_id_that_a_container_has_is_known_though_there_are_fewer_now() {
    let before = TWO.replace(r#""count":8"#, r#""count":8,"allocate":"numa""#);
    let node = Running::with(&before).listed("rdma/hca", 8);
    let request = AllocationRequest::new("a", "main", "rdma/hca", 1).reusing(&ids(&["7"]));
    let held = node.kubelet.allocate(&request).expect("allocated");
    assert_eq!(held.ids, ["7"]);
    node.machine
        .configure(&before.replace(r#""count":8"#, r#""count":4"#));
    node.has("rdma/hca", 4);
    let started = node.kubelet.before_start("rdma/hca", &held.ids);
    started.expect("it is started again");
    let refused = node.kubelet.ask_for("rdma/hca", &[&held.ids]);
    let status = refused.expect_err("it is no id any more");
    assert!(status.message().contains(r#""7""#), "{status}");
    // `rdma-cni` finds the device by the grant, and no longer by the published file
    assert_eq!(granted(&node, "rdma/hca", "7"), [FIRST.address]);
    let published = Published::read(&node.machine.path("state")).expect("read");
    let published = published.expect("published");
    assert_eq!(published.resources["rdma/hca"].devices("7"), None);
}

#[test]
fn fifty_reloads_and_cut_streams_leave_nothing_behind() {
    let node = Running::with(TWO)
        .listed("rdma/hca", 8)
        .listed("rdma/nic", 1);
    let (descriptors, threads) = settled(&node.daemon);
    for round in 0..25 {
        node.machine.configure(OTHER);
        node.has("rdma/hca", 16);
        node.has("rdma/new", 1);
        node.machine.configure(TWO);
        node.has("rdma/hca", 8);
        node.has("rdma/nic", 1);
        if round % 8 == 0 {
            let before = node.kubelet.registrations().len();
            node.kubelet.cut_streams();
            node.kubelet
                .wait_for_registrations("both again", |all| all.len() >= before + 2);
        }
    }
    node.daemon
        .wait_for_log_times("the new configuration takes effect", 50);
    assert_eq!(node.daemon.count("the new configuration takes effect"), 50);
    node.has("rdma/hca", 8);
    node.has("rdma/nic", 1);
    integration::wait::until("descriptors and threads are as before", || {
        node.daemon.descriptors() <= descriptors && node.daemon.threads() <= threads
    });
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
    daemon.wait_for_log_times("the new configuration takes effect", 2);
    assert_eq!(daemon.count("the new configuration takes effect"), 2);
}

#[test]
fn a_broken_file_changes_nothing_and_is_reported_once() {
    let node = Running::with(TWO).listed("rdma/hca", 8);
    let lists = node.kubelet.resource("rdma/hca").expect("known").lists;
    node.machine
        .configure(r#"{"resources":[{"name":"rdma/hca"}]}"#);
    node.daemon
        .wait_for_log("keeping the previous configuration: ");
    for times in 1..=2 {
        node.daemon.signal(Signal::SIGHUP);
        node.daemon.wait_for_log_times("SIGHUP", times);
    }
    // the daemon answers this request after it has handled both signals
    let allocated = node.kubelet.ask_for("rdma/hca", &[&ids(&["0"])]);
    allocated.expect("it still serves");
    node.machine.configure(OTHER);
    node.has("rdma/hca", 16);
    assert_eq!(node.daemon.count("keeping the previous configuration"), 1);
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
    node.daemon.wait_for_log("SIGHUP");
    node.machine.configure(OTHER);
    node.has("rdma/hca", 16);
    assert_eq!(node.kubelet.resource("rdma/hca").expect("known").lists, 2);
    node.daemon.wait_for_log("rdma/hca: kubelet has a new list");
    node.daemon
        .wait_for_log("the new configuration takes effect");
    assert_eq!(node.daemon.count("the new configuration takes effect"), 1);
}

#[test]
fn a_node_without_rdma_waits_for_devices() {
    let machine = Machine::bare();
    machine.configure(HCA);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = start(&machine);
    daemon.wait_for_log("nothing is advertised on this node");
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
