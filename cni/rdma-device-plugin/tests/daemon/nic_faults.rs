// SPDX-License-Identifier: Apache-2.0
//! Tests of health by fatal errors of the PCI link, with the whole daemon. A made-up node causes no event, so SIGHUP
//! makes the daemon observe.

use crate::{FIRST, Machine, SECOND, start};
use integration::kubelet::DeviceManager;
use nix::sys::signal::Signal;
use std::fs;

const RESOURCES: &str = r#"{"resources":[
    {"name":"rdma/a","kind":"exclusive","devices":[{"rdma":"mlx5_0"}]},
    {"name":"rdma/b","kind":"exclusive","devices":[{"rdma":"mlx5_1"}]}
]}"#;

fn errors(machine: &Machine, fatal: u32, nonfatal: u32, correctable: u32) {
    for (file, text) in [
        ("fatal", format!("TLP {fatal}\nTOTAL_ERR_FATAL {fatal}\n")),
        ("nonfatal", format!("TOTAL_ERR_NONFATAL {nonfatal}\n")),
        ("correctable", format!("TOTAL_ERR_COR {correctable}\n")),
    ] {
        let file = format!("sys/bus/pci/devices/{}/aer_dev_{file}", FIRST.address);
        // replace the file by a rename, because the kernel's file is never empty
        machine.write("new", &text);
        fs::rename(machine.path("new"), machine.path(&file)).expect("renamed");
    }
}

#[test]
fn a_fatal_pci_error_makes_its_nic_unhealthy() {
    let machine = Machine::with(&[FIRST, SECOND]);
    errors(&machine, 2, 1, 5);
    machine.configure(RESOURCES);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let daemon = start(&machine);
    let has = |resource: &str, healthy: usize| {
        let what = format!("{healthy} healthy ids");
        kubelet.wait_for(resource, &what, |it| it.healthy().len() == healthy);
    };
    // errors from before the daemon's start do not count
    has("rdma/a", 1);
    has("rdma/b", 1);
    // new nonfatal and correctable errors do not count either
    errors(&machine, 2, 4, 9);
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_log("rdma/b: kubelet has the list");
    errors(&machine, 3, 4, 9);
    daemon.signal(Signal::SIGHUP);
    has("rdma/a", 0);
    daemon
        .wait_for_log("0000:3b:00.0 is unhealthy: its PCI link had a fatal error (aer_dev_fatal)");
    has("rdma/b", 1);
    assert_eq!(daemon.count("is unhealthy"), 1);
    let metrics = daemon.get("/metrics");
    for line in [
        r#"rdma_nic_pci_errors_total{device="mlx5_0",kind="correctable"} 9"#,
        r#"rdma_nic_pci_errors_total{device="mlx5_0",kind="nonfatal"} 4"#,
        r#"rdma_nic_pci_errors_total{device="mlx5_0",kind="fatal"} 3"#,
        r#"rdma_device_healthy{device="mlx5_0"} 0"#,
        r#"rdma_device_plugin_scrape_complete{part="reports"} 1"#,
    ] {
        assert!(
            metrics.lines().any(|it| it == line),
            "no {line} in\n{metrics}"
        );
    }
    assert!(!metrics.contains(r#"rdma_nic_pci_errors_total{device="mlx5_1""#));
}
