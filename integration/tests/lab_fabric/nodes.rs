// SPDX-License-Identifier: Apache-2.0
//! Two nodes and a switch. Namespaces stand for them, veths for cables, and a bridge with one VLAN for each rail for the
//! switch. RDMA devices are the kernel's soft-RoCE.

use integration::{ApiServer, Netns, api_server::NODE, daemon::rdma_device_plugin, lab::ipv4};
use rdma_netns::netns;
use rdma_resources::Published;
use serde_json::{Value, json};
use std::{fs, os::unix::fs::symlink, process::Command};
use tempfile::TempDir;

pub(super) const RAILS: usize = 6;
/// A rail without a fault.
pub(super) const SOUND: usize = 0;
/// The switch drops UDP port 4791 of this rail, and nothing else.
pub(super) const FILTERED: usize = 1;
/// The switch has the peer's port of this rail in another VLAN.
pub(super) const STRAY: usize = 2;
/// The peer's cables of these rails are in each other's port.
pub(super) const SWAPPED: [usize; 2] = [3, 4];
/// The switch loses a fifth of this rail's packets, in each direction.
pub(super) const LOSSY: usize = 5;
/// The peer.
pub(super) const PEER: &str = "node-2";

const RESOURCE: &str = "rdma/hca";
const CONFIG_MAPS: &str = "/api/v1/namespaces/rdma/configmaps";

/// The two nodes. The first one pings and watches, by a stand-in for the API server in its namespace.
pub(super) struct Nodes {
    pub(super) nodes: [Netns; 2],
    switch: Netns,
    api: ApiServer,
    directory: TempDir,
}

impl Nodes {
    #[track_caller]
    pub(super) fn new() -> Self {
        let nodes = ["one", "two"].map(Netns::new);
        let switch = Netns::new("switch");
        let host = Netns::own();
        nodes[0].ip("link set dev lo up");
        let inside = netns::Netns::open(nodes[0].path()).expect("a namespace");
        let api = inside.run(ApiServer::start).expect("entered");
        let (mut cables, mut ports) = (vec![], vec![]);
        for (node, netns) in nodes.iter().enumerate() {
            for rail in 0..RAILS {
                let port = port(node, rail);
                let ends = [netns, &switch].map(Netns::name);
                cables.push(format!(
                    "link add rdma{rail} netns {} type veth peer name {port} netns {}",
                    ends[0], ends[1]
                ));
                ports.push(format!("link set dev {port} master switch up"));
            }
        }
        host.ip_batch(&cables);
        switch.ip("link add switch up type bridge vlan_filtering 1 vlan_default_pvid 0");
        switch.ip_batch(&ports);
        let directory = tempfile::tempdir().expect("a directory");
        let scene = Self {
            nodes,
            switch,
            api,
            directory,
        };
        for rail in 0..RAILS {
            for node in 0..2 {
                scene.vlan(node, rail, "add", rail);
            }
        }
        (0..2).for_each(|node| scene.start(node, 0));
        scene.publish();
        scene
    }

    /// Gives a node its hardware addresses, which differ for each `boot`, its addresses and its RDMA devices.
    #[track_caller]
    fn start(&self, node: usize, boot: usize) {
        let netns = &self.nodes[node];
        let (mut links, mut devices) = (vec![], vec![]);
        for rail in 0..RAILS {
            let address = ipv4(rail, node);
            links.push(format!(
                "link set dev rdma{rail} address {}",
                mac(node, rail, boot)
            ));
            links.push(format!("address add {address}/24 dev rdma{rail}"));
            links.push(format!("link set dev rdma{rail} up"));
            let device = port(node, rail);
            devices.push(format!("link add {device} type rxe netdev rdma{rail}"));
        }
        netns.ip_batch(&links);
        netns.rdma_batch(&devices);
        // a new one is the host's
        let set = |rail| format!("dev set {} netns {}", port(node, rail), netns.name());
        let moves: Vec<String> = (0..RAILS).map(set).collect();
        Netns::own().rdma_batch(&moves);
    }

    /// The peer loses its power: its RDMA devices, addresses and carriers are gone.
    #[track_caller]
    pub(super) fn peer_goes(&self) {
        let [_, peer] = &self.nodes;
        self.delete_devices(1);
        let gone = |rail| {
            [
                format!("address flush dev rdma{rail}"),
                format!("link set dev rdma{rail} down"),
            ]
        };
        let lines: Vec<String> = (0..RAILS).flat_map(gone).collect();
        peer.ip_batch(&lines);
    }

    /// The peer has booted again, with RDMA devices of other GUIDs.
    #[track_caller]
    pub(super) fn peer_returns(&self) {
        self.start(1, 1);
    }

    #[track_caller]
    fn delete_devices(&self, node: usize) {
        let delete = |rail| format!("link delete {}", port(node, rail));
        let lines: Vec<String> = (0..RAILS).map(delete).collect();
        self.nodes[node].rdma_batch(&lines);
    }

    /// `verb`, add or del, for the untagged VLAN of rail `of` on a port.
    #[track_caller]
    fn vlan(&self, node: usize, rail: usize, verb: &str, of: usize) {
        let (port, vlan) = (port(node, rail), 100 + of);
        self.switch.run(&format!(
            "bridge vlan {verb} dev {port} vid {vlan} pvid untagged"
        ));
    }

    /// All faults of the switch at the same time.
    #[track_caller]
    pub(super) fn break_switch(&self) {
        let filtered = port(1, FILTERED);
        let run = |line: &str| self.switch.run(line);
        run(&format!("tc qdisc add dev {filtered} clsact"));
        run(&format!(
            "tc filter add dev {filtered} egress protocol ip flower ip_proto udp dst_port 4791 action drop"
        ));
        for node in 0..2 {
            let lossy = port(node, LOSSY);
            run(&format!("tc qdisc add dev {lossy} root netem loss 20%"));
        }
        for (rail, other) in Self::strays() {
            self.vlan(1, rail, "del", rail);
            self.vlan(1, rail, "add", other);
        }
    }

    #[track_caller]
    pub(super) fn mend_switch(&self) {
        let run = |line: &str| self.switch.run(line);
        run(&format!("tc qdisc del dev {} clsact", port(1, FILTERED)));
        for node in 0..2 {
            run(&format!("tc qdisc del dev {} root", port(node, LOSSY)));
        }
        for (rail, other) in Self::strays() {
            self.vlan(1, rail, "del", other);
            self.vlan(1, rail, "add", rail);
        }
    }

    /// The rails whose VLANs are wrong on the peer's ports, and the rail whose VLAN each has.
    fn strays() -> [(usize, usize); 3] {
        let [one, other] = SWAPPED;
        [(STRAY, RAILS), (one, other), (other, one)]
    }

    /// Writes what both nodes' daemons have published: slices, and the peer's rails for the watch.
    fn publish(&self) {
        for (node, name) in [NODE, PEER].into_iter().enumerate() {
            let device = |rail: usize| {
                json!({"attributes": {
                    "resource": {"string": RESOURCE}, "rail": {"int": rail},
                    "netdev": {"string": format!("rdma{rail}")},
                    "hardwareAddress": {"string": mac(node, rail, 0)},
                    "ipv4Address": {"string": ipv4(rail, node)},
                }})
            };
            let devices: Vec<Value> = (0..RAILS).map(device).collect();
            let path = format!("/apis/resource.k8s.io/v1/resourceslices/{name}");
            let slice = json!({"spec": {"nodeName": name, "devices": devices}});
            self.api.put(&path, slice);
        }
        let rail = |rail: usize| {
            let addresses = [ipv4(rail, 1)];
            json!({"resource": RESOURCE, "number": rail, "device": "", "addresses": addresses})
        };
        let rails: Vec<Value> = (0..RAILS).map(rail).collect();
        let name = format!("rdma-fabric-{PEER}");
        let metadata = json!({"name": name, "labels": {"rdma-fabric-group": "5"}});
        let data = json!({"rails": json!(rails).to_string()});
        let path = format!("{CONFIG_MAPS}/{name}");
        self.api
            .put(&path, json!({"metadata": metadata, "data": data}));
    }

    /// The program on the first node, with its access to the API server.
    fn program(&self) -> Command {
        let mut command = self.nodes[0].command(rdma_device_plugin());
        command.envs(self.api.environment());
        command
    }

    /// The exit code and the document of a ping of the peer from each rail.
    #[track_caller]
    pub(super) fn ping(&self, options: &[&str]) -> (i32, Value) {
        let mut command = self.program();
        command.args(["ping", PEER, "--json"]).args(options);
        command.arg("--service-account-dir").arg(self.api.account());
        let output = command.output().expect("it starts");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let pairs = document["pairs"].as_array().map(Vec::len);
        assert_eq!(pairs, Some(RAILS), "{document:#}");
        (output.status.code().expect("not killed"), document)
    }

    /// The watch of the first node, at its fastest pace. The PCI functions of the rails are made up; the netdevs, RDMA
    /// devices and addresses are the kernel's.
    #[track_caller]
    pub(super) fn watch(&self) -> Command {
        let sysfs = self.directory.path().join("sys");
        let functions = sysfs.join("bus/pci/devices");
        let mut all = vec![];
        for rail in 0..RAILS {
            let function = format!("0000:{rail:02x}:00.0");
            let directory = functions.join(&function);
            fs::create_dir_all(directory.join(format!("net/rdma{rail}"))).expect("made");
            fs::write(directory.join("uevent"), "PCI_CLASS=20000\n").expect("written");
            all.push(function);
        }
        symlink("/sys/class", sysfs.join("class")).expect("a link");
        let resources = json!({RESOURCE: {"sharing": "exclusive", "byId": {"0": all}}});
        let published = json!({"format": 2, "resources": resources});
        let published: Published = serde_json::from_value(published).expect("resources");
        let state = self.directory.path().join("state");
        fs::create_dir(&state).expect("a directory");
        published.write(&state).expect("written");
        let mut command = self.program();
        command.args(["fabric", "--namespace=rdma", "--interval=1"]);
        command.arg("--metrics-address=127.0.0.1:0");
        command.arg("--service-account-dir").arg(self.api.account());
        command.arg("--state-dir").arg(state);
        command.arg("--sysfs").arg(sysfs);
        command
    }
}

impl Drop for Nodes {
    /// A namespace ends later, and gives its devices to the host.
    fn drop(&mut self) {
        for (node, netns) in self.nodes.iter().enumerate() {
            for rail in 0..RAILS {
                let mut delete = netns.command("rdma");
                let device = port(node, rail);
                let _ = delete.args(["link", "delete", &device]).output();
            }
        }
    }
}

/// The switch's port of a node's rail, and the rail's RDMA device.
pub(super) fn port(node: usize, rail: usize) -> String {
    format!("n{node}r{rail}")
}

fn mac(node: usize, rail: usize, boot: usize) -> String {
    format!("02:00:00:{boot:02x}:{node:02x}:{rail:02x}")
}
