// SPDX-License-Identifier: Apache-2.0
//! Tests of the daemon's end.

use crate::{FIRST, Machine, Running, TWO, socket_of, start};
use integration::kubelet::DeviceManager;
use nix::sys::signal::Signal;
use std::{fs, os::unix::net::UnixListener, path::PathBuf, time::Duration};

fn sockets(machine: &Machine) -> Vec<PathBuf> {
    let entries = fs::read_dir(machine.path("kubelet/device-plugins")).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .filter(|path| !path.ends_with("kubelet.sock"))
        .collect()
}

#[test]
fn a_signal_ends_it_and_its_sockets_go() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let with_cdi = TWO.replacen('{', r#"{"cdi":true,"#, 1);
        let node = Running::with(&with_cdi)
            .listed("rdma/hca", 8)
            .listed("rdma/nic", 1);
        assert_eq!(sockets(&node.machine).len(), 2);
        let Running {
            daemon,
            kubelet,
            machine,
        } = node;
        let (status, took) = daemon.end(signal);
        assert_eq!(status.code(), Some(0), "{status}");
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert!(sockets(&machine).is_empty());
        // kubelet keeps the list for the next daemon, and a restarted container needs the files
        let known = kubelet.wait_for("rdma/hca", "the stream ends", |it| it.streams == 0);
        assert_eq!(known.devices.len(), 8);
        assert!(machine.path("cdi/rdma-device-plugin-rdma.json").exists());
        assert!(machine.path("state/resources.json").exists());
    }
}

#[test]
fn the_daemon_ends_while_firmware_does_not_answer() {
    let node = Running::with(TWO)
        .listed("rdma/hca", 8)
        .listed("rdma/nic", 1);
    node.machine.silence(&FIRST);
    node.daemon.signal(Signal::SIGHUP);
    node.daemon.wait_for_log("SIGHUP");
    integration::wait::until("somebody asks", || node.daemon.threads() > 1);
    let (status, took) = node.daemon.end(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn the_daemon_ends_while_kubelet_hangs() {
    let machine = Machine::with(&[FIRST]);
    machine.configure(TWO);
    let mut kubelet = DeviceManager::new(&machine.path("kubelet"));
    kubelet.takes("", integration::kubelet::Manner::Silent);
    kubelet.start();
    let daemon = start(&machine);
    integration::wait::until("it has called", || kubelet.calls() > 0);
    let (status, took) = daemon.end(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn another_programs_socket_stays() {
    let node = Running::with(TWO)
        .listed("rdma/hca", 8)
        .listed("rdma/nic", 1);
    let socket = socket_of(&node.machine, "rdma_hca");
    let aside = socket.with_extension("other");
    let _other = UnixListener::bind(&aside).expect("bound");
    fs::rename(&aside, &socket).expect("renamed");
    node.daemon
        .wait_for_log("rdma/hca: another program serves this resource's socket");
    let Running {
        daemon, machine, ..
    } = node;
    let (status, _) = daemon.end(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0));
    assert_eq!(sockets(&machine), [socket]);
}

#[test]
fn the_next_daemon_takes_over_from_one_that_was_killed() {
    let node = Running::with(TWO)
        .listed("rdma/hca", 8)
        .listed("rdma/nic", 1);
    let Running {
        daemon,
        kubelet,
        machine,
    } = node;
    daemon.end(Signal::SIGKILL);
    assert_eq!(sockets(&machine).len(), 2, "killed: they are left");
    kubelet.wait_for("rdma/hca", "the stream ends", |it| it.streams == 0);
    let daemon = start(&machine);
    kubelet.wait_for("rdma/hca", "a stream", |it| {
        it.streams == 1 && it.lists == 2
    });
    let (status, _) = daemon.end(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0));
    assert!(sockets(&machine).is_empty());
}
