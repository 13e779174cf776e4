// SPDX-License-Identifier: Apache-2.0
//! Tests of the files by which Multus gets information about exclusive devices.

use crate::{
    FIRST, Machine, SECOND, TWO,
    program::{command, run, start_with},
};
use integration::{Daemon, kubelet::DeviceManager, wait};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Configuration in which both NICs are exclusive.
const BOTH: &str = r#"{"resources":[{"name":"rdma/nic","kind":"exclusive"}]}"#;

const OF_FIRST: &str = "rdma-nic-0000:3b:00.0-device.json";
const OF_SECOND: &str = "rdma-nic-0000:af:00.0-device.json";
/// Name of a file that sriov-network-device-plugin wrote for another device of the node.
const OF_ANOTHER: &str = "intel.com-nic-0000:5e:00.0-device.json";

fn directory(machine: &Machine) -> PathBuf {
    machine.path("devinfo/dp")
}

#[track_caller]
fn start(machine: &Machine) -> Daemon {
    let directory = directory(machine);
    let directory = directory.to_str().expect("a path");
    start_with(
        machine,
        &[
            "--metrics-address",
            "127.0.0.1:0",
            "--device-info",
            directory,
        ],
    )
}

/// Returns the JSON content of all files of the directory, by name: also of unfinished files and of other programs'
/// files.
fn found(machine: &Machine) -> BTreeMap<String, Value> {
    let Ok(entries) = fs::read_dir(directory(machine)) else {
        return BTreeMap::new();
    };
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let named = |path: PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy();
        let text = fs::read_to_string(&path).unwrap_or_default();
        (
            name.into_owned(),
            serde_json::from_str(&text).unwrap_or_default(),
        )
    };
    paths.map(named).collect()
}

fn of(address: &str, rdma: &str) -> Value {
    let pci = json!({"pci-address": address, "rdma-device": rdma});
    json!({"type": "pci", "version": "1.1.0", "pci": pci})
}

#[track_caller]
fn are(machine: &Machine, names: &[&str]) {
    let is_so = || found(machine).keys().eq(names);
    wait::until(&format!("{names:?}"), is_so);
}

fn anothers(machine: &Machine) -> PathBuf {
    let directory = directory(machine);
    fs::create_dir_all(&directory).expect("made");
    let another = directory.join(OF_ANOTHER);
    fs::write(&another, "{}\n").expect("written");
    another
}

#[test]
fn there_is_one_for_each_exclusive_device_and_none_for_shared_ones() {
    let machine = Machine::with(&[FIRST, SECOND]);
    machine.configure(TWO);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = start(&machine);
    kubelet.wait_for("rdma/nic", "its list", |it| it.healthy().len() == 1);
    are(&machine, &[OF_SECOND]);
    let files = found(&machine);
    assert_eq!(files[OF_SECOND], of(SECOND.address, SECOND.rdma));
    let inode = || {
        let file = fs::metadata(directory(&machine).join(OF_SECOND));
        let file = file.expect("the file");
        (file.ino(), file.mode() & 0o777)
    };
    let before = inode();
    assert_eq!(before.1, 0o644);
    machine.configure(BOTH);
    are(&machine, &[OF_FIRST, OF_SECOND]);
    assert_eq!(inode(), before, "written although it was as it should be");
    machine.configure(TWO);
    are(&machine, &[OF_SECOND]);
    // the files stay, because kubelet does not call Allocate again for a pod with a new sandbox
    daemon.end(Signal::SIGTERM);
    are(&machine, &[OF_SECOND]);
}

/// Multus also copies the information about devices of claims.
#[test]
fn there_is_one_for_each_exclusive_device_that_claims_serve() {
    let machine = Machine::with(&[FIRST, SECOND]);
    machine.configure(
        r#"{"resources":[{"name":"rdma/nic","kind":"exclusive"}],"dra":{"driverName":"hca.rdma"}}"#,
    );
    let _daemon = start(&machine);
    are(&machine, &[OF_FIRST, OF_SECOND]);
}

/// After a kill, the next daemon removes unfinished files, and files of devices and resources that are no longer
/// configured. It removes no file of another program.
#[test]
fn files_of_a_killed_daemon_go_and_foreign_ones_stay() {
    let machine = Machine::with(&[FIRST, SECOND]);
    let another = anothers(&machine);
    machine.configure(BOTH);
    let daemon = start(&machine);
    are(&machine, &[OF_ANOTHER, OF_FIRST, OF_SECOND]);
    daemon.end(Signal::SIGKILL);
    // a killed daemon left this unfinished file
    let unfinished = directory(&machine).join(OF_FIRST).with_extension("new");
    fs::write(unfinished, "{").expect("written");
    machine.configure(&TWO.replace("rdma/nic", "rdma/other"));
    let _next = start(&machine);
    let renamed = OF_SECOND.replace("nic", "other");
    are(&machine, &[OF_ANOTHER, renamed.as_str()]);
    assert!(another.exists());
}

#[test]
fn without_the_option_there_are_none() {
    let machine = Machine::with(&[FIRST, SECOND]);
    machine.configure(BOTH);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let _daemon = crate::start(&machine);
    kubelet.wait_for("rdma/nic", "its list", |it| it.healthy().len() == 2);
    assert!(!directory(&machine).exists());
}

#[test]
fn a_directory_that_cannot_exist_is_reported_and_stops_nothing() {
    let machine = Machine::with(&[FIRST, SECOND]);
    machine.configure(BOTH);
    fs::create_dir(machine.path("devinfo")).expect("made");
    fs::write(directory(&machine), "").expect("written");
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = start(&machine);
    daemon.wait_for_log("cannot write");
    kubelet.wait_for("rdma/nic", "its list", |it| it.healthy().len() == 2);
}

#[test]
fn release_removes_them() {
    let machine = Machine::with(&[FIRST, SECOND]);
    let another = anothers(&machine);
    machine.configure(BOTH);
    let daemon = start(&machine);
    are(&machine, &[OF_ANOTHER, OF_FIRST, OF_SECOND]);
    daemon.end(Signal::SIGTERM);
    let release = || {
        let done = run(command(&machine).arg("--release"));
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).expect("text")
    };
    assert!(release().ends_with("device information: 2 files removed\n"));
    are(&machine, &[OF_ANOTHER]);
    assert!(Path::exists(&another));
    assert!(!release().contains("removed"), "it can be repeated");
}

/// A user who controls the daemon's container can write the record, but root of the node runs `--release` and
/// `uninstall`.
#[test]
fn a_file_with_a_foreign_name_stays_whatever_the_record_contains() {
    let machine = Machine::with(&[FIRST, SECOND]);
    machine.configure(BOTH);
    let shadow = machine.path("etc/shadow");
    let lease = machine.path("etc/rdma-nic-device.json");
    machine.write("etc/shadow", "root");
    machine.write("etc/rdma-nic-device.json", "{}");
    let record = json!({"files": [shadow, lease, "rdma-nic-0000:3b:00.0-device.json"]});
    let is_all_there = || {
        assert!(shadow.exists(), "{shadow:?}");
        assert!(lease.exists(), "{lease:?}");
    };
    machine.write("state/device-info.json", &record.to_string());
    let daemon = start(&machine);
    are(&machine, &[OF_FIRST, OF_SECOND]);
    is_all_there();
    daemon.end(Signal::SIGTERM);
    machine.write("state/device-info.json", &record.to_string());
    let done = run(command(&machine).arg("--release"));
    assert!(done.status.success(), "{done:?}");
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(
        errors.contains("which is no file of device information"),
        "{errors}"
    );
    is_all_there();
}
