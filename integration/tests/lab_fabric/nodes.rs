// SPDX-License-Identifier: Apache-2.0
//! Three nodes and a switch. Veths act as cables. A namespace with a bridge, which has one VLAN for each rail, acts as
//! the switch. The RDMA devices are the kernel's soft-RoCE. All nodes are in the machine's namespace, because rdma_rxe
//! of some kernels has traffic in no other namespace. Policy rules make a packet from one node to another leave by its
//! rail, and not by `lo`.

use integration::{ApiServer, Netns, api_server::NODE, daemon::rdma_device_plugin, lab::ipv4};
use rdma_resources::Published;
use serde_json::{Value, json};
use std::{fs, os::unix::fs::symlink, path::PathBuf, process::Command};
use tempfile::TempDir;

pub(super) const RAILS: usize = 6;
/// A rail without a fault.
pub(super) const SOUND: usize = 0;
/// The switch drops UDP port 4791 to the first node on this rail, and nothing else.
pub(super) const FILTERED: usize = 1;
/// The switch has the first node's port of this rail in another VLAN.
pub(super) const STRAY: usize = 2;
/// The first node's cables of these two rails are swapped at the switch.
pub(super) const SWAPPED: [usize; 2] = [3, 4];
/// The switch loses a fifth of this rail's packets, in each direction.
pub(super) const LOSSY: usize = 5;
/// The nodes. The first node pings the second, and watches both other nodes.
const NODES: [&str; 3] = [NODE, "node-2", "node-3"];

const RESOURCE: &str = "rdma/hca";
const CONFIG_MAPS: &str = "/api/v1/namespaces/rdma/configmaps";

/// The nodes, and a stand-in for the API server.
pub(super) struct Nodes {
    pub(super) host: Netns,
    switch: Netns,
    api: ApiServer,
    directory: TempDir,
}

impl Nodes {
    #[track_caller]
    pub(super) fn new() -> Self {
        let (mut cables, mut ports, mut rules) = (vec![], vec![], vec![]);
        let switch = Netns::new("switch");
        let scene = Self {
            host: Netns::own(),
            switch,
            api: ApiServer::start(),
            directory: tempfile::tempdir().expect("a directory"),
        };
        for (node, rail) in all_rails() {
            let (netdev, port) = (netdev(node, rail), port(node, rail));
            let switch = scene.switch.name();
            cables.push(format!(
                "link add {netdev} type veth peer name {port} netns {switch}"
            ));
            ports.push(format!("link set dev {port} master switch up"));
            let (address, table) = (ipv4(rail, node), table(node, rail));
            rules.push(format!(
                "rule add pref 5 iif lo from {address} lookup {table}"
            ));
        }
        rules.extend(["rule add pref 10 lookup local", "rule del pref 0"].map(str::to_owned));
        scene.host.ip_batch(&cables);
        scene.host.ip_batch(&rules);
        let bridge = "link add switch up type bridge vlan_filtering 1 vlan_default_pvid 0";
        scene.switch.ip(bridge);
        scene.switch.ip_batch(&ports);
        for (node, rail) in all_rails() {
            let netdev = netdev(node, rail);
            // the machine has the addresses of all nodes, many of them in one network: it must accept packets from its
            // own addresses, and answer ARP only on the netdev with the address
            for (key, value) in [
                ("accept_local", "1"),
                ("rp_filter", "0"),
                ("arp_ignore", "1"),
            ] {
                let key = format!("ipv4/conf/{netdev}/{key}");
                scene.host.set_sysctl(&key, value);
            }
        }
        scene.vlans(all_rails().map(|(node, rail)| (node, rail, rail, true)));
        (0..NODES.len()).for_each(|node| scene.boots(node, 0));
        scene.publish();
        scene
    }

    /// Gives a node its hardware addresses, which differ for each `boot`, its addresses and its RDMA devices.
    #[track_caller]
    pub(super) fn boots(&self, node: usize, boot: usize) {
        let (mut links, mut devices) = (vec![], vec![]);
        for rail in 0..RAILS {
            let (netdev, address) = (netdev(node, rail), ipv4(rail, node));
            let mac = mac(node, rail, boot);
            links.push(format!("link set dev {netdev} address {mac}"));
            links.push(format!("address add {address}/24 dev {netdev}"));
            links.push(format!("link set dev {netdev} up"));
            let table = table(node, rail);
            links.push(format!("route add table {table} default dev {netdev}"));
            let device = port(node, rail);
            devices.push(format!("link add {device} type rxe netdev {netdev}"));
        }
        self.host.ip_batch(&links);
        self.host.rdma_batch(&devices);
    }

    /// Cuts the power of a node: removes its RDMA devices and addresses, and sets its netdevs down.
    #[track_caller]
    pub(super) fn goes(&self, node: usize) {
        let delete = |rail| format!("link delete {}", port(node, rail));
        let devices: Vec<String> = (0..RAILS).map(delete).collect();
        self.host.rdma_batch(&devices);
        let gone = |rail| {
            let netdev = netdev(node, rail);
            [
                format!("address flush dev {netdev}"),
                format!("link set dev {netdev} down"),
            ]
        };
        let lines: Vec<String> = (0..RAILS).flat_map(gone).collect();
        self.host.ip_batch(&lines);
    }

    /// Gives ports the untagged VLAN of a rail (true), or takes it from them. Each port has its node, its rail, and the
    /// rail of the VLAN.
    #[track_caller]
    fn vlans(&self, ports: impl IntoIterator<Item = (usize, usize, usize, bool)>) {
        let line = |(node, rail, of, has): (usize, usize, usize, bool)| {
            let verb = if has { "add" } else { "del" };
            let (port, vlan) = (port(node, rail), 100 + of);
            format!("vlan {verb} dev {port} vid {vlan} pvid untagged")
        };
        let lines: Vec<String> = ports.into_iter().map(line).collect();
        let file = self.directory.path().join("vlans");
        fs::write(&file, lines.join("\n")).expect("written");
        self.switch
            .run(&format!("bridge -batch {}", file.display()));
    }

    /// Makes the switch drop UDP port 4791 to the first node on one rail.
    #[track_caller]
    pub(super) fn filter(&self) {
        let port = port(0, FILTERED);
        self.switch.run(&format!("tc qdisc add dev {port} clsact"));
        self.switch.run(&format!(
            "tc filter add dev {port} egress protocol ip flower ip_proto udp dst_port 4791 action drop"
        ));
    }

    /// Makes all faults of the switch at the same time.
    #[track_caller]
    pub(super) fn break_switch(&self) {
        self.filter();
        for node in 0..NODES.len() {
            let lossy = port(node, LOSSY);
            self.switch
                .run(&format!("tc qdisc add dev {lossy} root netem loss 20%"));
        }
        let strays = Self::strays().map(|(rail, of)| [(0, rail, rail, false), (0, rail, of, true)]);
        self.vlans(strays.concat());
    }

    #[track_caller]
    pub(super) fn mend_switch(&self) {
        let filtered = port(0, FILTERED);
        self.switch
            .run(&format!("tc qdisc del dev {filtered} clsact"));
        for node in 0..NODES.len() {
            let lossy = port(node, LOSSY);
            self.switch.run(&format!("tc qdisc del dev {lossy} root"));
        }
        let strays = Self::strays().map(|(rail, of)| [(0, rail, of, false), (0, rail, rail, true)]);
        self.vlans(strays.concat());
    }

    /// The rails whose VLANs are wrong on the first node's ports, and the rail whose VLAN each has. `RAILS` stands for
    /// a VLAN of no rail.
    fn strays() -> [(usize, usize); 3] {
        let [one, other] = SWAPPED;
        [(STRAY, RAILS), (one, other), (other, one)]
    }

    /// Writes what the nodes' daemons have published: slices, and for the watch the rails of all nodes but the first.
    fn publish(&self) {
        for (node, name) in NODES.into_iter().enumerate() {
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
        for (node, name) in NODES.into_iter().enumerate().skip(1) {
            let rail = |rail: usize| {
                let addresses = [ipv4(rail, node)];
                json!({"resource": RESOURCE, "number": rail, "device": "", "addresses": addresses})
            };
            let rails: Vec<Value> = (0..RAILS).map(rail).collect();
            let name = format!("rdma-fabric-{name}");
            let metadata = json!({"name": name, "labels": {"rdma-fabric-group": "5"}});
            let data = json!({"rails": json!(rails).to_string()});
            let path = format!("{CONFIG_MAPS}/{name}");
            self.api
                .put(&path, json!({"metadata": metadata, "data": data}));
        }
    }

    /// The program on the first node, with its access to the API server.
    fn program(&self) -> Command {
        let mut command = self.host.command(rdma_device_plugin());
        command.envs(self.api.environment());
        command
    }

    /// The exit code and the document of a ping of the second node.
    #[track_caller]
    pub(super) fn ping(&self, options: &[&str]) -> (i32, Value) {
        let mut command = self.program();
        command.args(["ping", NODES[1], "--json"]).args(options);
        command.arg("--service-account-dir").arg(self.api.account());
        let output = command.output().expect("it starts");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        let document = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.code().expect("not killed"), document)
    }

    /// The state directory of the first node.
    pub(super) fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// The watch of the first node, at its fastest interval. The watch may treat all rails as unhealthy. The rails' PCI
    /// functions are made up; netdevs, RDMA devices and addresses are the kernel's.
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
        let state = self.state();
        fs::create_dir(&state).expect("a directory");
        published.write(&state).expect("written");
        let mut command = self.program();
        command.args(["fabric", "--namespace=rdma", "--interval=1"]);
        command.arg("--unhealthy-percent=100");
        command.arg("--metrics-address=127.0.0.1:0");
        command.arg("--service-account-dir").arg(self.api.account());
        command.arg("--state-dir").arg(state);
        command.arg("--sysfs").arg(sysfs);
        command
    }
}

impl Drop for Nodes {
    /// Removes the test's objects from the machine's namespace. A rail may be in a pod, so an attempt may fail.
    fn drop(&mut self) {
        let mut lines = ["rule add pref 0 lookup local", "rule del pref 10"]
            .map(str::to_owned)
            .to_vec();
        for (node, rail) in all_rails() {
            let device = port(node, rail);
            let _ = self
                .host
                .command("rdma")
                .args(["link", "delete", &device])
                .output();
            lines.push(format!("link delete dev {}", netdev(node, rail)));
            lines.push("rule del pref 5".to_owned());
        }
        self.host.ip_batch_of_attempts(&lines);
    }
}

fn all_rails() -> impl Iterator<Item = (usize, usize)> {
    (0..NODES.len()).flat_map(|node| (0..RAILS).map(move |rail| (node, rail)))
}

/// The netdev of a node's rail. All slices name it as on the first node.
fn netdev(node: usize, rail: usize) -> String {
    match node {
        0 => format!("rdma{rail}"),
        _ => format!("n{node}rdma{rail}"),
    }
}

/// The routing table of a node's rail.
fn table(node: usize, rail: usize) -> usize {
    1000 + node * RAILS + rail
}

/// The switch's port of a node's rail, and the rail's RDMA device.
pub(super) fn port(node: usize, rail: usize) -> String {
    format!("n{node}r{rail}")
}

fn mac(node: usize, rail: usize, boot: usize) -> String {
    format!("02:00:00:{boot:02x}:{node:02x}:{rail:02x}")
}
