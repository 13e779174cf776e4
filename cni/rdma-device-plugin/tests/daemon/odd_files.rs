// SPDX-License-Identifier: Apache-2.0
//! Tests of links, pipes, directories and a file of a gigabyte in place of the daemon's files. The daemon starts, and
//! offers the present devices, or logs which file prevents the offer.

use super::{FIRST, HCA, SECOND, ids, program};
use integration::{Machine, OddFile, kubelet::DeviceManager, wait};
use rdma_resources::Grants;
use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    thread,
    time::Duration,
};

#[test]
fn a_daemon_starts_whatever_is_in_the_place_of_its_files() {
    for odd in OddFile::ALL {
        let machine = Machine::with(&[FIRST, SECOND]);
        let elsewhere = tempfile::tempdir().expect("a directory");
        machine.configure(HCA);
        for file in [
            "state/granted/rdma@hca/0.json",
            "state/granted/rdma@hca/1.json.new",
            "state/daemons/0000000001-00000000.daemon",
            "state/attachments/net/a@eth0.json",
            "state/claims/0c1f6e1e.json",
            "state/erdma/instance",
            "state/install.json",
        ] {
            odd.put(&machine.path(file), elsewhere.path());
        }
        let kubelet = DeviceManager::started(&machine.path("kubelet"));
        let _daemon = program::start(&machine);
        kubelet.wait_for("rdma/hca", "its ids", |it| it.healthy().len() == 1000);
        kubelet
            .ask_for("rdma/hca", &[&ids(&["2"])])
            .expect("allocated");
        let grants = Grants::new(&machine.path("state"));
        assert!(
            grants.read("rdma/hca", "2").expect("read").is_some(),
            "{odd:?}"
        );
        OddFile::assert_left_alone(elsewhere.path());
    }
}

/// If the daemon cannot publish the devices of the ids, kubelet gets no device, because `rdma-cni` would not find it.
#[test]
fn a_published_file_that_is_no_file_is_replaced() {
    for odd in OddFile::ALL {
        let machine = Machine::with(&[FIRST]);
        let elsewhere = tempfile::tempdir().expect("a directory");
        machine.configure(HCA);
        let published = machine.path("state/resources.json");
        odd.put(&published, elsewhere.path());
        let kubelet = DeviceManager::started(&machine.path("kubelet"));
        let daemon = program::start(&machine);
        if odd == OddFile::Directory {
            daemon.wait_for_log("resources.json");
        } else {
            kubelet.wait_for("rdma/hca", "its ids", |it| it.healthy().len() == 1000);
            let found = std::fs::symlink_metadata(&published).expect("it");
            assert!(found.is_file() && found.len() < 1 << 20, "{odd:?}");
        }
        OddFile::assert_left_alone(elsewhere.path());
    }
}

/// The daemon retries although nothing else changes on the node.
#[test]
fn a_failed_publication_is_repeated() {
    let machine = Machine::with(&[FIRST]);
    machine.configure(r#"{"mode":"hca","cdi":true}"#);
    let cdi = machine.path("cdi");
    let _ = fs::remove_dir_all(&cdi);
    fs::write(&cdi, "no directory").expect("written");
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = program::start(&machine);
    daemon.wait_for_log("; trying again");
    kubelet.wait_for("rdma/hca", "its ids", |it| it.healthy().len() == 1000);
    wait::until("it is at rest", || {
        let before = daemon.sleeps();
        thread::sleep(Duration::from_secs(1));
        daemon.sleeps() == before
    });
    fs::remove_file(&cdi).expect("removed");
    fs::create_dir(&cdi).expect("a directory");
    daemon.wait_for_log("published again");
    assert!(cdi.join("rdma-device-plugin-rdma.json").exists());
}

/// A restored backup or a hardening script can set any mode. Root can still read and write the files.
#[test]
fn unusable_modes_keep_no_container_from_its_devices() {
    for mode in [0o000, 0o111, 0o7777] {
        let machine = Machine::with(&[FIRST]);
        machine.configure(HCA);
        let kubelet = DeviceManager::started(&machine.path("kubelet"));
        let daemon = program::start(&machine);
        kubelet.wait_for("rdma/hca", "its ids", |it| it.healthy().len() == 1000);
        kubelet
            .ask_for("rdma/hca", &[&ids(&["2"])])
            .expect("allocated");
        drop(daemon);
        let state = machine.path("state");
        let claims = state.join("claims");
        fs::create_dir_all(&claims).expect("made");
        let granted = state.join("granted/rdma@hca");
        for path in [
            granted.join("2.json"),
            granted,
            state.join("granted"),
            claims,
            state.join("resources.json"),
            state.clone(),
        ] {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
        }
        let _daemon = program::start(&machine);
        kubelet.wait_for("rdma/hca", "its ids", |it| it.healthy().len() == 1000);
        let grants = Grants::new(&state);
        for id in ["2", "3"] {
            kubelet
                .ask_for("rdma/hca", &[&ids(&[id])])
                .unwrap_or_else(|error| panic!("{mode:o}: {error:?}"));
            assert!(grants.read("rdma/hca", id).expect("read").is_some());
        }
        let new = fs::metadata(state.join("granted/rdma@hca/3.json")).expect("a grant");
        assert_eq!(new.mode() & 0o7777, 0o600, "{mode:o}");
    }
}
