// SPDX-License-Identifier: Apache-2.0
//! Tests of resources that Kubernetes allocates by claims.

use crate::{FIRST, Machine, Running, SECOND, program::command};
use integration::{ApiServer, Daemon, slices, wait};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;

#[test]
fn a_degraded_device_has_no_taint_where_the_api_server_refuses_it() {
    let machine = Machine::with(&[FIRST, SECOND]);
    for (nic, speed) in [(FIRST, "100000"), (SECOND, "400000")] {
        let file = format!("sys/class/net/{}", nic.netdev);
        machine.write(&format!("{file}/carrier"), "1\n");
        machine.write(&format!("{file}/speed"), speed);
    }
    machine.configure(
        r#"{"resources":[{"name":"rdma/nic","kind":"exclusive"}],"dra":{"driverName":"hca.rdma"}}"#,
    );
    let api = ApiServer::start();
    api.refuse_effect("None");
    let mut command = command(&machine);
    command.args(["--metrics-address", "127.0.0.1:0"]);
    command.arg("--service-account-dir").arg(api.account());
    let daemon = Daemon::start(command.envs(api.environment()));
    wait::until("both are there", || {
        slices::devices(&api.slices()).0.len() == 2
    });
    let taints = |slice: &Value| slice["spec"]["devices"][0]["taints"].clone();
    assert_eq!(taints(&api.slices()[0]), Value::Null);
    daemon.wait_for_log("the API server refuses taints with the effect None");
    let reason = "its speed is 100000 Mbit/s, and a NIC of the same model has 400000 Mbit/s";
    daemon.wait_for_log(&format!("degraded: {}: {reason}", FIRST.rdma));
}

/// The alert `RdmaDevicesMissing` compares `devices_present` with `devices_expected`.
#[test]
fn a_nic_that_disappears_from_a_resource_of_claims_is_missing_in_the_metrics() {
    let machine = Machine::with(&[FIRST, SECOND]);
    machine.configure(
        r#"{"resources":[{"name":"rdma/nic","kind":"exclusive"}],"dra":{"driverName":"hca.rdma"}}"#,
    );
    let api = ApiServer::start();
    let mut command = command(&machine);
    command.args(["--metrics-address", "127.0.0.1:0"]);
    command.arg("--service-account-dir").arg(api.account());
    let daemon = Daemon::start(command.envs(api.environment()));
    let shows = |present: usize| {
        let lines = [
            r#"rdma_device_plugin_devices_expected{resource="rdma/nic"} 2"#.to_owned(),
            format!(r#"rdma_device_plugin_devices_present{{resource="rdma/nic"}} {present}"#),
            format!(
                r#"rdma_device_healthy{{device="{}"}} {}"#,
                SECOND.rdma,
                present - 1
            ),
        ];
        wait::until(&format!("{present} devices are present"), || {
            let text = daemon.get("/metrics");
            lines.iter().all(|line| text.lines().any(|it| it == line))
        });
    };
    shows(2);
    let capacity = "rdma_device_plugin_capacity";
    assert!(
        !daemon.get("/metrics").contains(capacity),
        "claims have no ids"
    );
    machine.unplug(&SECOND);
    daemon.signal(Signal::SIGHUP);
    shows(1);
}

/// The daemon makes the sockets for claims when it can. Until then it serves its other resources.
#[test]
fn without_sockets_for_claims_other_resources_are_served() {
    let machine = Machine::with(&[FIRST, SECOND]);
    let driver = "rdma.networking.alibabacloud.com";
    fs::create_dir_all(machine.path("kubelet")).expect("made");
    machine.write("kubelet/plugins_registry", "a file is in the way");
    let configuration = json!({
        "resources": [
            {"name": "rdma/nic", "kind": "exclusive", "devices": [{"rdma": FIRST.rdma}]},
            {"name": "rdma/hca", "kind": "shared", "count": 3, "devices": [{"rdma": SECOND.rdma}]},
        ],
        "dra": {"driverName": driver, "resources": ["rdma/nic"]},
    });
    let running = Running::on(machine, &configuration.to_string()).listed("rdma/hca", 3);
    let registry = running.machine.path("kubelet/plugins_registry");
    running
        .daemon
        .wait_for_log(&format!("cannot make \"{}/", registry.display()));
    let sockets = |directory: &str| {
        let entries = fs::read_dir(running.machine.path(directory));
        entries.map_or(0, Iterator::count)
    };
    assert_eq!(sockets(&format!("kubelet/plugins/{driver}")), 1);

    fs::remove_file(&registry).expect("removed");
    wait::until("kubelet finds the driver", || {
        sockets("kubelet/plugins_registry") == 1
    });
}
