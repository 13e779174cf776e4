// SPDX-License-Identifier: Apache-2.0
//! Tests of one daemon that replaces another one, as in an update of a DaemonSet: the new daemon starts before the old
//! one ends.

use crate::{
    FIRST, Machine, Running, SECOND, TWO,
    program::{start_in_user_namespace, start_with},
    start,
};
use integration::{
    Daemon,
    kubelet::{
        DeviceManager, Manner,
        plugins::{Generation, Resource},
    },
    stopwatch::Stopwatch,
    wait,
};
use nix::sys::signal::Signal;
use std::{fs, process::Command, time::Duration};

fn running(generation: Generation) -> Running {
    let machine = Machine::with(&[FIRST, SECOND]);
    machine.configure(TWO);
    let mut kubelet = DeviceManager::new(&machine.path("kubelet")).of_generation(generation);
    kubelet.start();
    let daemon = start(&machine);
    let running = Running {
        daemon,
        kubelet,
        machine,
    };
    running.listed("rdma/hca", 8).listed("rdma/nic", 1)
}

fn is_ready(daemon: &Daemon) -> bool {
    daemon.get("/readyz").starts_with("HTTP/1.1 200")
}

/// Starts another daemon, and waits until it is ready.
#[track_caller]
fn successor(machine: &Machine) -> Daemon {
    let daemon = start(machine);
    wait::until("the new daemon is ready", || is_ready(&daemon));
    daemon
}

fn known(kubelet: &DeviceManager, resource: &str) -> Resource {
    kubelet.resource(resource).expect("known")
}

fn sockets(machine: &Machine) -> usize {
    let entries = fs::read_dir(machine.path("kubelet/device-plugins")).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    names.filter(|name| *name != "kubelet.sock").count()
}

/// Makes two upgrades, so that the second one replaces a daemon that itself replaced another one. After each upgrade,
/// the new daemon must have registered `attaches` resources again, so that kubelet notices when it ends.
#[track_caller]
fn no_moment_without_ids(generation: Generation, attaches: usize) {
    let Running {
        mut daemon,
        kubelet,
        machine,
    } = running(generation);
    for _ in 0..2 {
        let new = successor(&machine);
        let (status, _) = daemon.end(Signal::SIGTERM);
        assert_eq!(status.code(), Some(0));
        daemon = new;
        daemon.wait_for_log_times(
            "registered again, so that kubelet notices the end of this plugin",
            attaches,
        );
        // wait for late effects, which occur within this time
        std::thread::sleep(Duration::from_millis(1300));
    }
    for (resource, ids) in [("rdma/hca", 8), ("rdma/nic", 1)] {
        let known = known(&kubelet, resource);
        assert_eq!(known.allocatable, [ids], "{resource}");
        assert!(!known.stopped, "{resource}");
    }
    assert_eq!(sockets(&machine), 2);
    // kubelet notices the daemon's end
    daemon.end(Signal::SIGTERM);
    kubelet.wait_for("rdma/hca", "nothing to allocate", |it| {
        it.allocatable == [8, 0]
    });
    assert_eq!(sockets(&machine), 0);
}

#[test]
fn an_upgrade_leaves_no_moment_without_ids() {
    no_moment_without_ids(Generation::ByName, 2);
}

#[test]
fn nor_with_kubelets_that_distinguish_plugins() {
    no_moment_without_ids(Generation::BySocket, 2);
}

#[test]
fn nor_with_kubelets_that_replace_the_old_one() {
    no_moment_without_ids(Generation::Replacing, 0);
}

/// Kubelet forgets its client of the new daemon, and a kubelet that has little CPU time reports this too late.
#[test]
fn a_kubelet_that_answers_late_notices_the_new_daemons_end() {
    let Running {
        daemon: old,
        kubelet,
        machine,
    } = running(Generation::ByName);
    kubelet.takes("", Manner::FailingLate);
    let new = successor(&machine);
    new.wait_for_log_times(
        "cannot replace the other daemon's plugin: kubelet did not answer",
        2,
    );
    old.end(Signal::SIGTERM);
    new.wait_for_log_times(
        "registered again, so that kubelet notices the end of this plugin",
        2,
    );
    new.end(Signal::SIGTERM);
    for resource in ["rdma/hca", "rdma/nic"] {
        kubelet.wait_for(resource, "none", |it| it.healthy().is_empty());
    }
}

/// Both daemons have one address for metrics. Only the leading daemon answers the requests and probes at this address.
#[test]
fn the_address_for_metrics_goes_to_the_new_daemon_and_back() {
    let machine = Machine::with(&[FIRST, SECOND]);
    machine.configure(TWO);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = port.local_addr().expect("an address").to_string();
    drop(port);
    let start = || start_with(&machine, &["--metrics-address", &address]);
    let old = start();
    kubelet.wait_for("rdma/hca", "8 ids", |it| it.healthy().len() == 8);
    wait::until("the old daemon is ready", || is_ready(&old));
    let new = start();
    new.wait_for_log("metrics are at http://");
    assert_eq!(new.count("cannot listen"), 0);
    wait::until("the new daemon is ready", || is_ready(&new));
    old.wait_for_log("a newer daemon runs on this node");
    // the new daemon is killed: the old daemon answers the requests again, and has the same state as before
    new.end(Signal::SIGKILL);
    old.wait_for_log_times("metrics are at http://", 2);
    old.wait_for_log_times("registered with kubelet", 4);
    wait::until("the old daemon is ready again", || is_ready(&old));
    kubelet.wait_for("rdma/nic", "its id", |it| it.healthy().len() == 1);
    assert_eq!(sockets(&machine), 4, "a killed one's are left");
    let next = start();
    next.wait_for_log("metrics are at http://");
    wait::until("the next daemon is ready", || is_ready(&next));
    assert_eq!(sockets(&machine), 4, "and taken away by the next");
}

#[test]
fn the_old_daemons_end_is_noticed_when_the_new_one_was_killed() {
    for generation in [
        Generation::ByName,
        Generation::BySocket,
        Generation::Replacing,
    ] {
        let Running {
            daemon: old,
            kubelet,
            machine,
        } = running(generation);
        let new = successor(&machine);
        new.end(Signal::SIGKILL);
        old.wait_for_log_times("registered with kubelet", 4);
        for resource in ["rdma/hca", "rdma/nic"] {
            kubelet.wait_for(resource, "all ids", |it| {
                !it.stopped && !it.healthy().is_empty()
            });
        }
        old.end(Signal::SIGTERM);
        for resource in ["rdma/hca", "rdma/nic"] {
            kubelet.wait_for(resource, "none", |it| it.healthy().is_empty());
        }
    }
}

/// Only the new daemon writes the files for `rdma-cni`, because the two daemons may have different configurations.
#[test]
fn later_observations_of_the_old_daemon_do_not_count() {
    let Running {
        daemon: old,
        kubelet,
        machine,
    } = running(Generation::ByName);
    machine.write("etc/other.json", crate::HCA);
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdma-device-plugin"));
    machine.arguments(&mut command);
    command.arg("--config").arg(machine.path("etc/other.json"));
    command.args(["--metrics-address", "127.0.0.1:0"]);
    let new = Daemon::start(&mut command);
    kubelet.wait_for("rdma/hca", "1000 ids", |it| it.healthy().len() == 1000);
    wait::until("the new daemon is ready", || is_ready(&new));
    let published = fs::read_to_string(machine.path("state/resources.json")).expect("published");
    assert!(!published.contains("rdma/nic"), "{published}");
    // a device disappears, and the old daemon observes this, too
    machine.unplug(&SECOND);
    for daemon in [&old, &new] {
        daemon.signal(Signal::SIGHUP);
        daemon.wait_for_log("SIGHUP");
    }
    new.wait_for_log("kubelet has a new list");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(old.count("kubelet has a new list"), 0);
    assert_eq!(known(&kubelet, "rdma/hca").devices.len(), 1000);
    let published = fs::read_to_string(machine.path("state/resources.json")).expect("published");
    assert!(!published.contains("rdma/nic"), "{published}");
}

/// Returns the result and the output of a container's probe.
fn probe(machine: &Machine, question: &str, of: &str) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdma-device-plugin"));
    command
        .args(["probe", question, "--socket"])
        .arg(machine.path(of));
    let output = command.output().expect("run");
    let bytes = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8(bytes).expect("text"),
    )
}

fn probed(machine: &Machine, of: &str) -> Daemon {
    let socket = machine.path(of).display().to_string();
    let any = ["--metrics-address", "127.0.0.1:0", "--probe-socket"];
    start_with(machine, &[&any[..], &[&socket]].concat())
}

/// Both pods use the node's network, and have one address. If one daemon answered the probes of both pods, a fault of
/// this daemon would make kubelet restart both containers. Kubernetes would also delete the old pod before the new pod
/// is ready.
#[test]
fn the_probes_of_one_daemon_are_not_answered_by_the_other() {
    let machine = Machine::with(&[FIRST, SECOND]);
    machine.configure(TWO);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let old = probed(&machine, "old.sock");
    wait::until("the old daemon is ready", || {
        probe(&machine, "ready", "old.sock").0
    });
    kubelet.takes("", Manner::Refusing("not today".into()));
    let new = probed(&machine, "new.sock");
    new.wait_for_log("kubelet refuses: not today");
    let (is_ready, why) = probe(&machine, "ready", "new.sock");
    let refused = "kubelet does not have the device list of rdma/hca, rdma/nic yet";
    assert!(!is_ready && why.contains(refused), "{why}");
    let (is_well, output) = probe(&machine, "live", "new.sock");
    assert!(is_well && output.contains("2 resources"), "{output}");
    for question in ["ready", "live"] {
        let (is_well, output) = probe(&machine, question, "old.sock");
        assert!(
            is_well && output.contains("leads again if"),
            "{question}: {output}"
        );
    }
    // the new daemon ends: the old daemon leads again, and registers again when kubelet accepts it
    new.end(Signal::SIGTERM);
    assert!(!probe(&machine, "live", "new.sock").0, "its socket is left");
    old.wait_for_log("the other daemon has ended");
    old.wait_for_log_times("kubelet refuses: not today", 2);
    kubelet.takes("", Manner::Proper);
    wait::until("the old daemon is ready again", || {
        let (is_ready, output) = probe(&machine, "ready", "old.sock");
        is_ready && !output.contains("leads again if")
    });
}

/// A new daemon may wait a minute for the firmware of a device. Until the new daemon has observed the node, the old
/// daemon remains registered with kubelet.
#[test]
fn a_new_daemon_that_waits_for_a_device_is_not_ready_and_lives() {
    let Running {
        daemon: old,
        kubelet: _kubelet,
        machine,
    } = running(Generation::ByName);
    let slow = Machine::with(&[FIRST, SECOND]);
    let state = slow.path("sys/class/infiniband/mlx5_0/ports/1/state");
    slow.silence(&FIRST);
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdma-device-plugin"));
        command.env_clear();
        for (flag, path) in [
            ("--config", machine.path("etc/config.json")),
            ("--kubelet-dir", machine.path("kubelet")),
            ("--state-dir", machine.path("state")),
            ("--cdi-dir", machine.path("cdi")),
            ("--sysfs", slow.path("sys")),
            ("--dev", slow.path("dev")),
            ("--probe-socket", machine.path("new.sock")),
        ] {
            command.arg(flag).arg(path);
        }
        let new = Daemon::start(command.args(["--metrics-address", "127.0.0.1:0"]));
        wait::until("it answers", || probe(&machine, "live", "new.sock").0);
        let (is_ready, output) = probe(&machine, "ready", "new.sock");
        assert!(!is_ready && output.contains("starting: "), "{output}");
        new
    };
    // a signal ends the daemon while it waits
    let (status, took) = start().end(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(5), "{took:?}");
    let new = start();
    assert!(is_ready(&old));
    assert_eq!(old.count("another daemon takes over"), 0);
    let mut pipe = fs::OpenOptions::new()
        .write(true)
        .open(&state)
        .expect("it waits");
    fs::write(state.with_extension("new"), "4: ACTIVE\n").expect("written");
    fs::rename(state.with_extension("new"), &state).expect("renamed");
    std::io::Write::write_all(&mut pipe, b"4: ACTIVE\n").expect("written");
    drop(pipe);
    wait::until("the new daemon is ready", || {
        probe(&machine, "ready", "new.sock").0
    });
    old.wait_for_log("another daemon takes over");
    drop(new);
}

/// The kernel limits inotify's instances and watches for each user. The test sets each limit to 0.
#[test]
fn without_inotify_another_daemons_end_and_kubelets_are_noticed_all_the_same() {
    for (limit, error) in [
        (
            "max_inotify_instances",
            "(os error 24), so raise the sysctl fs.inotify.max_user_instances",
        ),
        (
            "max_inotify_watches",
            "(os error 28), so raise the sysctl fs.inotify.max_user_watches",
        ),
    ] {
        let machine = Machine::with(&[FIRST, SECOND]);
        machine.configure(TWO);
        let mut kubelet = DeviceManager::started(&machine.path("kubelet"));
        let start = || {
            let before = format!("echo 0 > /proc/sys/user/{limit} &&");
            start_in_user_namespace(&machine, &before)
        };
        let old = start();
        old.wait_for_log(&format!(
            "no events for {:?}",
            [machine.path("state/daemons")]
        ));
        for lack in ["no events for", "cannot watch the records of pods' devices"] {
            assert!(old.line(lack).contains(error), "{}", old.line(lack));
        }
        old.wait_for_log_times("registered with kubelet", 2);
        let new = start();
        old.wait_for_log("another daemon takes over");
        new.wait_for_log_times("registered with kubelet", 2);
        let at = Stopwatch::start();
        new.end(Signal::SIGKILL);
        old.wait_for_log("the other daemon has ended");
        assert!(at.elapsed() < Duration::from_secs(5), "{:?}", at.elapsed());
        kubelet.restart();
        kubelet.wait_for("rdma/hca", "its ids", |it| it.healthy().len() == 8);
        // each task reports its paths once, and then polls them
        let limited = format!("no events for {:?}", [machine.path("state/limited")]);
        assert_eq!(old.count(&limited), 1, "{limited}");
    }
}
