// SPDX-License-Identifier: Apache-2.0
//! Tests of health by error counters, with the whole daemon.

use crate::{FIRST, Machine, SECOND, start};
use integration::{Daemon, kubelet::DeviceManager, wait};
use std::{fs, thread, time::Duration};

const RESOURCES: &str = r#""resources":[
    {"name":"rdma/a","kind":"shared","count":8,"devices":[{"rdma":"mlx5_0"}]},
    {"name":"rdma/b","kind":"exclusive","devices":[{"rdma":"mlx5_1"}]}
]"#;

/// Thresholds whose counters the daemon reads every second.
const ERRORS: &str = r#""errors":[
    {"counter":"out_of_sequence","above":1000,"per":"10s"},
    {"counter":"symbol_error","above":10,"per":"10s"}
]"#;

fn machine(errors: &str) -> Machine {
    let machine = Machine::with(&[FIRST, SECOND]);
    for rdma in [FIRST.rdma, SECOND.rdma] {
        for (directory, counter) in [
            ("counters", "symbol_error"),
            ("hw_counters", "out_of_sequence"),
        ] {
            let directory = format!("sys/class/infiniband/{rdma}/ports/1/{directory}");
            fs::create_dir_all(machine.path(&directory)).expect("made");
            machine.write(&format!("{directory}/{counter}"), "500\n");
        }
    }
    configure(&machine, errors);
    machine
}

fn configure(machine: &Machine, errors: &str) {
    machine.configure(&format!("{{{}}}", [RESOURCES, errors].join(",")));
}

fn symbol_errors(machine: &Machine, rdma: &str, value: &str) {
    let counter = format!("sys/class/infiniband/{rdma}/ports/1/counters/symbol_error");
    // replace the file by a rename, because the kernel's file is never empty
    machine.write("new", value);
    fs::rename(machine.path("new"), machine.path(&counter)).expect("renamed");
}

#[track_caller]
fn has(kubelet: &DeviceManager, resource: &str, healthy: usize) {
    let what = format!("{healthy} healthy ids");
    kubelet.wait_for(resource, &what, |it| it.healthy().len() == healthy);
}

/// Sets the counter to one value after the other, until the daemon makes the ids of the resource unhealthy. The daemon
/// may not have read the counter before the first value.
#[track_caller]
fn grows(machine: &Machine, kubelet: &DeviceManager, device: (&str, &str), values: &[u32]) {
    let (rdma, resource) = device;
    let is_seen = |value: &u32| {
        symbol_errors(machine, rdma, &format!("{value}\n"));
        kubelet.within(Duration::from_secs(10), resource, |it| {
            it.is_some_and(|it| it.healthy().is_empty())
        })
    };
    assert!(
        values.iter().any(is_seen),
        "{:?}",
        kubelet.resource(resource)
    );
}

/// Waits until the daemon has read the counters at least once.
fn settled(daemon: &Daemon) {
    daemon.wait_for_log("rdma/b: kubelet has the list");
    thread::sleep(Duration::from_millis(1500));
}

#[test]
fn a_device_whose_errors_grow_is_unhealthy_until_they_stop() {
    let machine = machine(ERRORS);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = start(&machine);
    has(&kubelet, "rdma/a", 8);
    has(&kubelet, "rdma/b", 1);
    settled(&daemon);
    symbol_errors(&machine, "mlx5_0", "510\n");
    settled(&daemon);
    has(&kubelet, "rdma/a", 8);
    symbol_errors(&machine, "mlx5_0", "535\n");
    has(&kubelet, "rdma/a", 0);
    let line = daemon.line("0000:3b:00.0 is unhealthy: symbol_error of port 1 of mlx5_0 grew by");
    let threshold = "more than 10 in 10 s is unhealthy (errors[1])";
    assert!(line.contains(threshold), "{line}");
    let healthy = |device: &str, is: u8| {
        let line = format!("rdma_device_healthy{{device=\"{device}\"}} {is}\n");
        let metrics = daemon.get("/metrics");
        assert!(metrics.contains(&line), "no {line} in\n{metrics}");
    };
    healthy("mlx5_0", 0);
    healthy("mlx5_1", 1);
    // the counter is reset, and stays at zero
    symbol_errors(&machine, "mlx5_0", "0\n");
    has(&kubelet, "rdma/a", 8);
    daemon.wait_for_log("0000:3b:00.0 is healthy again");
    healthy("mlx5_0", 1);
    has(&kubelet, "rdma/b", 1);
}

/// In exclusive mode the host's sysfs does not show a device that is in a pod.
#[test]
fn a_device_whose_counters_are_not_to_be_seen_stays_as_it_was() {
    let machine = machine(ERRORS);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = start(&machine);
    has(&kubelet, "rdma/b", 1);
    settled(&daemon);
    grows(
        &machine,
        &kubelet,
        ("mlx5_1", "rdma/b"),
        &[600, 700, 800, 900],
    );
    let port = machine.path("sys/class/infiniband/mlx5_1/ports/1");
    let aside = machine.path("aside");
    fs::rename(&port, &aside).expect("moved");
    thread::sleep(Duration::from_secs(12));
    has(&kubelet, "rdma/b", 0);
    assert_eq!(daemon.count("is healthy again"), 0);
    fs::rename(&aside, &port).expect("moved back");
    has(&kubelet, "rdma/b", 1);
}

#[test]
fn thresholds_come_and_go_with_the_file() {
    let machine = machine(r#""cdi":false"#);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = start(&machine);
    has(&kubelet, "rdma/a", 8);
    symbol_errors(&machine, "mlx5_0", "900\n");
    let unknown = r#""errors":[{"counter":"symbol_error","above":0,"per":"10s"},
        {"counter":"symbol_eror","above":0,"per":"10s"}]"#;
    configure(&machine, unknown);
    daemon
        .wait_for_log("errors[1]: no RDMA device of this node has symbol_eror in ports/N/counters");
    thread::sleep(Duration::from_millis(1500));
    has(&kubelet, "rdma/a", 8);
    grows(
        &machine,
        &kubelet,
        ("mlx5_0", "rdma/a"),
        &[901, 902, 903, 904],
    );
    configure(
        &machine,
        r#""errors":[{"counter":"symbol_error","per":"10s"}]"#,
    );
    daemon.wait_for_log("keeping the previous configuration:");
    daemon.wait_for_log(
        "errors[0].above: must be a whole number from 0 to 4294967295, and is missing",
    );
    configure(&machine, r#""cdi":false"#);
    has(&kubelet, "rdma/a", 8);
}

/// In this test, the daemon reads the counters every three seconds.
#[test]
fn the_error_reader_sleeps_between_readings() {
    let machine = machine(r#""errors":[{"counter":"symbol_error","above":10,"per":"30s"}]"#);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = start(&machine);
    has(&kubelet, "rdma/a", 8);
    // the machine's own devices may cause events meanwhile, and an idle thread may end
    let wakes_only_to_read = || {
        let parts = 0..12;
        let awake = parts.filter(|_| {
            let before = daemon.sleeps();
            thread::sleep(Duration::from_millis(500));
            daemon.sleeps() != before
        });
        // one reading can be in two of the measured periods
        (2..=4).contains(&awake.count())
    };
    wait::until("it wakes twice in six seconds", wakes_only_to_read);
}
