// SPDX-License-Identifier: Apache-2.0
//! Tests of eRDMA NICs with the whole daemon: discovery, selection, bring-up and release of NICs, the driver's mode,
//! and the reports.

use crate::{
    Machine,
    program::{command, run, start_with},
};
use integration::{
    Daemon, Netns, kubelet::DeviceManager, machine::Erdma as Nic, metadata::MetadataService, wait,
};
use nix::sys::signal::Signal;
use std::process::Command;

const ERDMA: &str = "aliyun/erdma";

const FIRST: Nic<'_> = Nic {
    address: "0000:00:07.0",
    netdev_address: "0000:00:05.0",
    rdma: "erdma_0",
    netdev: "eri0",
    mac: "00:16:3e:0a:0b:01",
    numa_node: 0,
    number: 0,
};
const SECOND: Nic<'_> = Nic {
    address: "0000:00:08.0",
    netdev_address: "0000:00:06.0",
    rdma: "erdma_1",
    netdev: "eri1",
    mac: "00:16:3e:0a:0b:02",
    numa_node: 1,
    number: 1,
};

fn node(nics: &[Nic<'_>]) -> (Machine, DeviceManager) {
    let machine = Machine::with(&[]);
    machine.erdma_module(Some(Some(false)));
    for nic in nics {
        machine.plug_erdma(nic);
    }
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    (machine, kubelet)
}

fn start(machine: &Machine) -> Daemon {
    start_with(machine, &["--metrics-address", "127.0.0.1:0"])
}

#[track_caller]
fn has(kubelet: &DeviceManager, ids: usize) {
    let what = format!("{ids} healthy ids");
    kubelet.wait_for(ERDMA, &what, |it| it.healthy().len() == ids);
}

#[test]
fn the_agents_flags_alone_offer_every_nic_and_later_ones() {
    let (machine, kubelet) = node(&[FIRST]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdma-device-plugin"));
    machine.arguments(&mut command);
    command.args(["--local-eri-discovery", "--allocate-all-devices"]);
    command.args(["--metrics-address", "127.0.0.1:0"]);
    let daemon = Daemon::start(&mut command);
    has(&kubelet, 200);
    machine.plug_erdma(&SECOND);
    daemon.signal(Signal::SIGHUP);
    has(&kubelet, 400);
    let answer = kubelet.ask_for(ERDMA, &[&crate::ids(&["erdma_1/3"])]);
    let given = answer.expect("given").container_responses.remove(0);
    let paths: Vec<&str> = given.devices.iter().map(|it| &*it.host_path).collect();
    let both = [
        "/dev/infiniband/uverbs0",
        "/dev/infiniband/uverbs1",
        "/dev/infiniband/rdma_cm",
    ];
    assert_eq!(paths, both);
    machine.unplug_erdma(&SECOND);
    daemon.signal(Signal::SIGHUP);
    has(&kubelet, 200);
}

#[test]
fn entries_for_this_instance_are_offered_once_the_instance_is_known() {
    let (machine, kubelet) = node(&[FIRST, SECOND]);
    let service = MetadataService::new();
    let base = service.base();
    machine.configure(&format!(
        "erdma: {{exposedLocalERIs: [i-bp1 erdma_1, i-* erdma_0], metadata: '{base}', \
         configureNICs: false}}"
    ));
    let daemon = start(&machine);
    daemon.wait_for_log("this instance is i-bp1");
    has(&kubelet, 200);
    daemon.wait_for_log("0000:00:07.0 (erdma_0) is not in aliyun/erdma");
    // the daemon sends no further request to the metadata service; the pattern i-bp2 is for another instance
    let requests_before = service.requests().len();
    machine.configure(&format!(
        "erdma: {{exposedLocalERIs: [i-bp2 erdma_1, i-* erdma_0], metadata: '{base}', \
         configureNICs: false}}"
    ));
    daemon.wait_for_log("0000:00:08.0 (erdma_1) is not in aliyun/erdma");
    has(&kubelet, 200);
    assert_eq!(service.requests().len(), requests_before);
    // the instance's id is also known after a restart without the metadata service
    daemon.end(Signal::SIGTERM);
    drop(service);
    machine.configure(&format!(
        "erdma: {{exposedLocalERIs: [i-bp1 erdma_1, i-* erdma_0], metadata: '{base}', \
         configureNICs: false}}"
    ));
    let daemon = start(&machine);
    has(&kubelet, 200);
    daemon.wait_for_log("0000:00:07.0 (erdma_0) is not in aliyun/erdma");
    assert_eq!(daemon.count("this instance is"), 0);
    assert_eq!(daemon.count("does not yet use NICs"), 0);
}

#[test]
fn a_table_of_nics_and_the_drivers_mode() {
    let (machine, _kubelet) = node(&[FIRST, SECOND]);
    machine.configure("erdma: {preferDriver: compat, exposedLocalERIs: [i-* erdma_0]}");
    let done = run(command(&machine).arg("--check-config"));
    assert!(done.status.success(), "{done:?}");
    let table = String::from_utf8(done.stdout).expect("UTF-8");
    let wanted = "\
RESOURCE      KIND          IDS  DEVICE        RDMA     NETDEV  NUMA  HEALTH
aliyun/erdma  perNic, numa  200  0000:00:07.0  erdma_0  eri0    0     healthy
- erdma: 0000:00:08.0 (erdma_1) is not in aliyun/erdma, because erdma.exposedLocalERIs does not select it

ERDMA    DEVICE        NETDEV               MAC                USED
erdma_0  0000:00:07.0  eri0 (0000:00:05.0)  00:16:3e:0a:0b:01  yes
erdma_1  0000:00:08.0  eri1 (0000:00:06.0)  00:16:3e:0a:0b:02  not exposed
- the eRDMA driver is in mode default: rdma_cm and SMC-R work
- the daemon reloads the eRDMA driver in mode compat when the driver is not in use
";
    assert_eq!(table, wanted);
    assert!(!machine.path("state/resources.json").exists());

    machine.erdma_module(None);
    machine.configure("erdma: {exposedLocalERIs: [i-bp9 erdma_1], metadata: 'http://127.0.0.1:1'}");
    let done = run(command(&machine).arg("--check-config"));
    let table = String::from_utf8(done.stdout).expect("UTF-8");
    for words in [
        "the daemon does not use NICs whose selection depends on the instance's id: the metadata service at http://127.0.0.1:1",
        "not exposed (the instance's id is unknown)",
        "- the eRDMA driver is not loaded: load it (modprobe erdma)",
    ] {
        assert!(table.contains(words), "no {words} in\n{table}");
    }
}

/// The sysfs directory is not the kernel's sysfs, so the daemon does not load modules.
#[test]
fn the_mode_and_its_users_are_in_the_log_and_the_metrics() {
    let (machine, kubelet) = node(&[FIRST]);
    machine.configure("erdma: {preferDriver: compat}");
    let daemon = start(&machine);
    has(&kubelet, 200);
    daemon.wait_for_log("the eRDMA driver cannot be loaded in mode compat");
    daemon.wait_for_log("erdma_0: left alone: its netdev is not in this network namespace");
    let figures = || daemon.get("/metrics");
    let outcome = r#"rdma_erdma_nic{device="erdma_0",netdev="eri0",outcome="left_alone"} 1"#;
    wait::until("what became of the NIC", || figures().contains(outcome));
    for line in [
        r#"rdma_erdma_driver_mode{mode="default",which="loaded"} 1"#,
        r#"rdma_erdma_driver_mode{mode="compat",which="wanted"} 1"#,
        r#"rdma_erdma_driver_problem{problem="not_loadable"} 1"#,
    ] {
        let text = figures();
        assert!(text.contains(line), "no {line} in\n{text}");
    }
}

/// Runs in a network namespace with a veth in place of a NIC. The sysfs directory describes it as an eRDMA NIC.
#[test]
fn a_nic_is_brought_up_and_released() {
    let netns = Netns::new("erdma");
    netns.ip("link add eri0 type veth peer name wire0");
    netns.ip(&format!("link set eri0 address {}", FIRST.mac));
    netns.ip("link set wire0 up");
    let (machine, kubelet) = node(&[FIRST]);
    machine.configure(&format!(
        "erdma: {{addresses: [{{mac: '{}', address: 10.7.0.9/24, gateway: 10.7.0.253}}]}}",
        FIRST.mac
    ));
    let command = || {
        let mut command = netns.command(env!("CARGO_BIN_EXE_rdma-device-plugin"));
        machine.arguments(&mut command);
        // the shell finds `ip` by PATH
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    };
    let mut serving = command();
    serving.arg("--config").arg(machine.path("etc/config.json"));
    let daemon = Daemon::start(serving.args(["--metrics-address", "127.0.0.1:0"]));
    daemon.wait_for_log("erdma_0: eri0 has 10.7.0.9/24");
    has(&kubelet, 200);
    let addresses = || netns.addresses("eri0");
    assert!(
        addresses().iter().any(|it| it.contains("10.7.0.9")),
        "{:?}",
        addresses()
    );
    let release = || run(command().arg("--release"));
    // `--release` refuses to run while the daemon runs
    let refused = release();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    daemon.end(Signal::SIGTERM);
    let done = release();
    assert!(done.status.success(), "{done:?}");
    let output = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(output.starts_with("eri0: released, "), "{output}");
    assert!(
        !addresses().iter().any(|it| it.contains("10.7.0.9")),
        "{:?}",
        addresses()
    );
    let again = release();
    assert!(again.status.success(), "{again:?}");
    let output = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(output.contains("there is nothing to restore"), "{output}");
}

#[test]
fn a_release_is_no_check() {
    let (machine, _kubelet) = node(&[]);
    let done = run(command(&machine).args(["--release", "--check-config"]));
    assert_eq!(done.status.code(), Some(2), "{done:?}");
}
