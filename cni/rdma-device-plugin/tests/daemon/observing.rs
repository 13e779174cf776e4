// SPDX-License-Identifier: Apache-2.0
//! Tests of health and metrics, with the whole daemon.

use crate::{
    FIRST, HCA, Machine, Running, SECOND, TWO, ids, pod_with_second,
    program::{start_in_user_namespace, start_with},
};
use integration::{
    kubelet::{DeviceManager, Manner},
    stopwatch::Stopwatch,
    wait,
};
use nix::sys::signal::Signal;
use std::{
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Longest time until the daemon reports a port's state (`docs/device-plugin.md`).
const REPORT_LIMIT: Duration = Duration::from_secs(1);

#[test]
fn metrics_report_kubelets_state() {
    let node = Running::with(HCA).listed("rdma/hca", 1000);
    node.kubelet
        .ask_for("rdma/hca", &[&ids(&["1"])])
        .expect("given");
    let health = node.daemon.get("/healthz");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    let lines = [
        r#"rdma_device_plugin_registered{resource="rdma/hca"} 1"#,
        r#"rdma_device_plugin_capacity{resource="rdma/hca"} 1000"#,
        r#"rdma_device_plugin_healthy{resource="rdma/hca"} 1000"#,
        r#"rdma_device_plugin_list_updates_total{resource="rdma/hca"} 1"#,
        "rdma_device_plugin_allocate_seconds_count",
    ];
    let mut metrics = String::new();
    // the daemon gets kubelet's answer after kubelet has the list
    let has_all = || {
        metrics = node.daemon.get("/metrics");
        lines.iter().all(|line| metrics.contains(line))
    };
    assert!(wait::within(wait::TIMEOUT, has_all), "{metrics}");
}

#[test]
fn an_infiniband_ports_state_is_followed_without_an_event() {
    let machine = crate::Machine::with(&[crate::FIRST]);
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    machine.write(&format!("{port}/link_layer"), "InfiniBand\n");
    machine.configure(HCA);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let _daemon = crate::start(&machine);
    kubelet.wait_for("rdma/hca", "its list", |it| it.healthy().len() == 1000);
    // retry, because the machine may be busy for a moment
    let mut took = vec![];
    let in_time = (0..3).any(|_| {
        machine.write(&format!("{port}/state"), "2: INIT\n");
        let at = Stopwatch::start();
        kubelet.wait_for("rdma/hca", "no healthy id", |it| it.healthy().is_empty());
        let down = at.elapsed();
        // the daemon has just observed the port, so the next observation is a whole interval later
        machine.write(&format!("{port}/state"), "4: ACTIVE\n");
        let at = Stopwatch::start();
        kubelet.wait_for("rdma/hca", "its ids", |it| it.healthy().len() == 1000);
        took.push((down, at.elapsed()));
        took.last()
            .is_some_and(|(down, up)| *down < REPORT_LIMIT && *up < REPORT_LIMIT)
    });
    assert!(in_time, "{took:?}");
}

#[test]
fn the_page_reports_events() {
    let machine = crate::Machine::with(&[crate::FIRST, crate::SECOND]);
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    machine.write(&format!("{port}/link_layer"), "InfiniBand\n");
    machine.configure(HCA);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = crate::start(&machine);
    kubelet.wait_for("rdma/hca", "its list", |it| it.healthy().len() == 1000);
    let page = daemon.get("/");
    for text in [
        "NUMA node 0",
        "NUMA node 1",
        "mlx5_0",
        "InfiniBand",
        "all healthy",
        "No device became unhealthy since",
        "No pod has a rail now.",
    ] {
        assert!(page.contains(text), "no {text} in:\n{page}");
    }
    let became = |word: &str| {
        let row = format!("<td><code>0000:3b:00.0 (mlx5_0)</code></td><td><b class=\"{word}\">");
        wait::until(word, || daemon.get("/").contains(&row));
    };
    machine.write(&format!("{port}/state"), "2: INIT\n");
    became("bad");
    let page = daemon.get("/");
    assert!(page.contains("unhealthy, link init"), "{page}");
    assert!(page.contains("<h2>Unhealthy now</h2>"), "{page}");
    machine.write(&format!("{port}/state"), "4: ACTIVE\n");
    became("ok");
    let page = daemon.get("/");
    let why = "port 1 of mlx5_0 is initializing: no subnet manager has brought it up";
    assert!(page.contains(why), "{page}");
    assert!(!page.contains("<h2>Unhealthy now</h2>"), "{page}");
    // the page also shows the log's errors
    machine.configure("{");
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_log("keeping the previous configuration");
    let page = daemon.get("/");
    assert!(
        page.contains("keeping the previous configuration"),
        "{page}"
    );
}

#[test]
fn a_kubelet_that_refuses_for_ten_seconds_is_reported_by_healthz() {
    let machine = crate::Machine::with(&[crate::FIRST]);
    machine.configure(HCA);
    let mut kubelet = DeviceManager::new(&machine.path("kubelet"));
    kubelet.takes("", Manner::Refusing("not today".into()));
    kubelet.start();
    let at = Instant::now();
    let daemon = crate::start(&machine);
    daemon.wait_for_log("kubelet refuses: not today");
    let health = daemon.get("/healthz");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    let mut health = String::new();
    wait::until("healthz reports the refusal", || {
        health = daemon.get("/healthz");
        !health.starts_with("HTTP/1.1 200")
    });
    assert!(health.starts_with("HTTP/1.1 503"), "{health}");
    let reason =
        "rdma/hca has not been registered with kubelet for 10 s, although kubelet's socket exists";
    assert!(health.contains(reason), "{health}");
    assert!(at.elapsed() >= Duration::from_secs(10), "too early");
    kubelet.takes("", Manner::Proper);
    kubelet.restart();
    kubelet.wait_for("rdma/hca", "its list", |it| it.healthy().len() == 1000);
    wait::until("healthz reports the recovery", || {
        daemon.get("/healthz").starts_with("HTTP/1.1 200")
    });
}

#[test]
fn with_ethernet_only_it_sleeps_until_an_event() {
    let node = Running::with(HCA).listed("rdma/hca", 1000);
    // the machine's own devices may cause events meanwhile
    let asleep = || {
        let before = node.daemon.sleeps();
        thread::sleep(Duration::from_millis(2500));
        node.daemon.sleeps() == before
    };
    wait::until("it sleeps for 2.5 s", asleep);
}

/// The records of a network have a directory of their own, which needs one more watch of inotify.
#[test]
fn the_daemon_polls_records_that_it_cannot_watch() {
    let machine = Machine::with(&[FIRST, SECOND]);
    // an InfiniBand VF that is down is as healthy as its PF on the host, and unhealthy in a pod
    machine.is_virtual(&SECOND, &FIRST, 0);
    let port = "sys/class/infiniband/mlx5_1/ports/1";
    machine.write(&format!("{port}/link_layer"), "InfiniBand\n");
    machine.write(&format!("{port}/state"), "1: DOWN\n");
    machine.configure(TWO);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = start_in_user_namespace(&machine, "");
    kubelet.wait_for("rdma/nic", "its id", |it| it.healthy().len() == 1);
    let limited = Command::new("nsenter")
        .args(["--user", "--preserve-credentials", "--target"])
        .arg(daemon.pid().to_string())
        .args(["sh", "-c", "echo 0 > /proc/sys/user/max_inotify_watches"])
        .status();
    assert!(limited.expect("nsenter runs").success());
    fs::create_dir_all(machine.path("state/attachments/rails")).expect("a directory");
    daemon.wait_for_log(
        "cannot watch records of new networks: No space left on device (os error 28), so raise the sysctl \
         fs.inotify.max_user_watches",
    );
    // the observation after the new directory's event finds no record
    thread::sleep(Duration::from_secs(1));
    let _pod = pod_with_second(&machine);
    kubelet.wait_for("rdma/nic", "no healthy id", |it| it.healthy().is_empty());
}

#[test]
fn an_address_that_is_taken_does_not_stop_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = taken.local_addr().expect("an address").to_string();
    let machine = crate::Machine::with(&[crate::FIRST]);
    machine.configure(HCA);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = start_with(&machine, &["--metrics-address", &address]);
    daemon.wait_for_log("no metrics: cannot listen at");
    kubelet.wait_for("rdma/hca", "its list", |it| it.healthy().len() == 1000);
    // the other program, which had the address, has ended
    drop(taken);
    daemon.wait_for_log(&format!("metrics are at http://{address}/metrics"));
}
