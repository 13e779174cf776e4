// SPDX-License-Identifier: Apache-2.0
//! Tests of `lldp`: the switches of the NICs, with a real lldpd at the other end of a real veth pair. The
//! RDMA devices of the NICs are files.

use crate::{FIRST, Machine, program::command};
use integration::{Daemon, Manager, Netns, kubelet::DeviceManager, wait};
use nix::{
    sched::{CloneFlags, setns},
    sys::signal::Signal,
};
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    process::Command,
    thread,
};

fn configuration(lldp: &Value) -> String {
    let resources = json!([{"name": "rdma/hca", "kind": "shared", "count": 8}]);
    json!({"resources": resources, "lldp": lldp}).to_string()
}

/// A node with one NIC, whose cable leads to a switch.
struct Cabled {
    node: Netns,
    switch: Netns,
    machine: Machine,
    _kubelet: DeviceManager,
}

impl Cabled {
    fn new() -> Self {
        let (node, switch) = (Netns::new("node"), Netns::new("switch"));
        let machine = Machine::with(&[FIRST]);
        machine.configure(&configuration(&json!({"listen": true})));
        let cabled = Self {
            _kubelet: DeviceManager::started(&machine.path("kubelet")),
            node,
            switch,
            machine,
        };
        cabled.cable();
        cabled.node.ip("link set lo up");
        cabled
    }

    /// Makes the veth pair that is the cable.
    fn cable(&self) {
        let line = format!(
            "link add {} type veth peer name swp1 netns {}",
            FIRST.netdev,
            self.switch.name()
        );
        self.node.ip(&line);
        self.node.ip(&format!("link set {} up", FIRST.netdev));
        self.switch.ip("link set swp1 up");
    }

    #[track_caller]
    fn start(&self) -> Daemon {
        let daemon = command(&self.machine);
        let mut inside: Command = self.node.command(daemon.get_program());
        inside.args(daemon.get_args());
        inside.args(["--metrics-address", "127.0.0.1:0", "--node-features"]);
        Daemon::start(inside.arg(self.machine.path("features.d")))
    }

    /// Returns the daemon's HTTP answer for `path`, requested from within the node's namespace.
    fn get(&self, daemon: &Daemon, path: &str) -> String {
        let node = File::open(self.node.path()).expect("the namespace");
        let get = || {
            setns(node, CloneFlags::CLONE_NEWNET).expect("entered");
            daemon.get(path)
        };
        thread::scope(|scope| scope.spawn(get).join()).expect("no panic")
    }

    fn labels(&self) -> Vec<String> {
        let file = self.machine.path("features.d/rdma-device-plugin");
        let text = fs::read_to_string(file).unwrap_or_default();
        let lines = text
            .lines()
            .filter_map(|it| it.split_once("rdma-nics.switch"));
        lines.map(|(_, label)| label.to_owned()).collect()
    }

    /// Returns the NIC's entry in the daemon's file of switches.
    fn entry(&self) -> Value {
        let text = fs::read_to_string(self.machine.path("state/switches.json"));
        let all: Value = text.map_or(Value::Null, |it| serde_json::from_str(&it).expect("JSON"));
        all[FIRST.address].clone()
    }

    #[track_caller]
    fn until(&self, what: &str, is: impl Fn(&Value) -> bool) {
        wait::until(what, || is(&self.entry()));
    }
}

fn is_leaf1(entry: &Value) -> bool {
    entry["name"] == "leaf1" && entry["portId"] == "swp1" && entry["netdev"] == FIRST.netdev
}

#[test]
fn a_switch_is_reported_and_ends() {
    let cabled = Cabled::new();
    let daemon = cabled.start();
    let lldpd = Manager::lldpd(&cabled.switch, "leaf1", 5);
    daemon.wait_for_log("ens1: the switch is leaf1, its port swp1");
    cabled.until("in the file", is_leaf1);
    let metric = r#"rdma_device_switch_info{device="mlx5_0",netdev="ens1",switch="leaf1",switch_port="swp1"} 1"#;
    let metrics = cabled.get(&daemon, "/metrics");
    assert!(metrics.contains(metric), "{metrics}");
    assert!(cabled.get(&daemon, "/").contains("port swp1 of leaf1"));
    let labels = ["-0=leaf1", "es=leaf1"];
    wait::until("labels", || cabled.labels() == labels);
    // the TTL in the shutdown frame of an ending lldpd is 0
    lldpd.run("pkill lldpd");
    daemon.wait_for_log("ens1: the switch is no longer known");
    cabled.until("not in the file", Value::is_null);
    // the daemon publishes the state for scrapes after the file
    wait::until("not in the metrics", || {
        let metrics = cabled.get(&daemon, "/metrics");
        !metrics.contains("rdma_device_switch_info")
    });
    assert_eq!(cabled.labels(), labels, "no label changes with a cable");
    drop(lldpd);
    let lldpd = Manager::lldpd(&cabled.switch, "leaf2", 5);
    daemon.wait_for_log("ens1: the switch is leaf2");
    wait::until("another label", || {
        cabled.labels() == ["-0=leaf2", "es=leaf2"]
    });
    // a killed lldpd sends no shutdown frame, so the TTL ends the entry
    drop(lldpd);
    daemon.wait_for_log_times("ens1: the switch is no longer known", 2);
}

#[test]
fn a_later_daemon_knows_the_switch_of_a_nic_that_is_in_a_pod() {
    let cabled = Cabled::new();
    let daemon = cabled.start();
    let lldpd = Manager::lldpd(&cabled.switch, "leaf1", 3);
    cabled.until("leaf1", is_leaf1);
    // the netdev moves into a pod: the made-up sysfs no longer has it
    let place = cabled
        .machine
        .path(&format!("sys/class/net/{}", FIRST.netdev));
    let real = fs::read_link(&place).expect("a link");
    let function = format!("sys/bus/pci/devices/{}/net", FIRST.address);
    let net = cabled.machine.path(&function);
    fs::remove_file(&place).expect("removed");
    fs::rename(&net, net.with_extension("away")).expect("moved");
    daemon.signal(Signal::SIGHUP);
    cabled.until("away", |it| is_leaf1(it) && it["isAway"] == true);
    daemon.end(Signal::SIGTERM);
    drop(lldpd);
    let daemon = cabled.start();
    daemon.wait_for_log("metrics are at");
    thread::sleep(std::time::Duration::from_secs(4));
    cabled.until("still known", |it| is_leaf1(it) && it["isAway"] == true);
    // the netdev returns, and another switch replaces the last one
    fs::rename(net.with_extension("away"), &net).expect("moved");
    std::os::unix::fs::symlink(real, &place).expect("a link");
    daemon.signal(Signal::SIGHUP);
    let _lldpd = Manager::lldpd(&cabled.switch, "leaf2", 5);
    daemon.wait_for_log("ens1: the switch is leaf2");
    cabled.machine.configure(&configuration(&Value::Null));
    daemon.signal(Signal::SIGHUP);
    cabled.until("turned off", Value::is_null);
}

#[test]
fn a_file_of_lldpd_is_another_source() {
    let cabled = Cabled::new();
    let node = Manager::lldpd(&cabled.node, "node1", 60);
    let _switch = Manager::lldpd(&cabled.switch, "leaf1", 60);
    node.until("lldpd has a neighbour", || {
        node.run("lldpcli -f json0 show neighbors")
            .contains("leaf1")
    });
    let output = cabled.machine.path("lldp/neighbors.json");
    cabled
        .machine
        .configure(&configuration(&json!({"file": output})));
    let mut daemon = cabled.start();
    daemon.wait_for_log("No such file");
    fs::create_dir(cabled.machine.path("lldp")).expect("made");
    for format in ["json0", "json"] {
        let text = node.run(&format!("lldpcli -f {format} show neighbors"));
        fs::write(&output, text).expect("written");
        cabled.until(format, is_leaf1);
        // a broken file changes nothing, and a list without the NIC removes the switch
        fs::write(&output, "{\"lldp\":").expect("written");
        daemon.wait_for_log("keeps the last LLDP neighbours");
        assert!(is_leaf1(&cabled.entry()));
        daemon.end(Signal::SIGTERM);
        daemon = cabled.start();
        daemon.wait_for_log("keeps the last LLDP neighbours");
        assert!(is_leaf1(&cabled.entry()));
        fs::write(&output, "{\"lldp\":{}}").expect("written");
        cabled.until("removed", Value::is_null);
    }
}
