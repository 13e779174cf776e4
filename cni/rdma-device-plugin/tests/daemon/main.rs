// SPDX-License-Identifier: Apache-2.0
//! Tests with the real daemon, a made-up node and a stand-in for kubelet, over real sockets.

mod allocating;
mod beside;
mod chained;
mod command_line;
mod crowded_pod;
mod device_info;
mod ending;
mod environment;
mod erdma;
mod errors;
mod fabric;
mod memlock;
mod multi_plane;
mod nic_faults;
mod node_features;
mod observing;
mod odd_files;
mod program;
mod refused;
mod registering;
mod reloading;
mod reporting;
mod scale;
mod slices;
mod spreading;
mod switches;
mod upgrading;

use integration::{Daemon, Machine, Netns, kubelet::DeviceManager, machine::Nic};
use program::start;
use rdma_netns::{Kernel, Linux};
use serde_json::json;

const FIRST: Nic<'_> = Nic {
    address: "0000:3b:00.0",
    rdma: "mlx5_0",
    netdev: "ens1",
    numa_node: 0,
    number: 0,
};

const SECOND: Nic<'_> = Nic {
    address: "0000:af:00.0",
    rdma: "mlx5_1",
    netdev: "ens2",
    numa_node: 1,
    number: 1,
};

/// Configuration from the ConfigMap of k8s-rdma-sriov-dev-plugin.
const HCA: &str = r#"{"mode":"hca"}"#;

/// Configuration with a shared and an exclusive resource of one NIC each.
const TWO: &str = r#"{"resources":[
    {"name":"rdma/hca","kind":"shared","count":8,"devices":[{"rdma":"mlx5_0"}]},
    {"name":"rdma/nic","kind":"exclusive","devices":[{"rdma":"mlx5_1"}]}
]}"#;

/// A configured node with two NICs, with a kubelet and the daemon.
struct Running {
    // the daemon is first, so that it ends before kubelet and the node's files
    daemon: Daemon,
    kubelet: DeviceManager,
    machine: Machine,
}

impl Running {
    #[track_caller]
    fn with(configuration: &str) -> Self {
        Self::on(Machine::with(&[FIRST, SECOND]), configuration)
    }

    /// Configures the node `machine`, and starts kubelet and the daemon on it.
    #[track_caller]
    fn on(machine: Machine, configuration: &str) -> Self {
        machine.configure(configuration);
        let kubelet = DeviceManager::started(&machine.path("kubelet"));
        let daemon = start(&machine);
        Self {
            daemon,
            kubelet,
            machine,
        }
    }

    /// Waits until kubelet has a list of `resource` with `ids` healthy ids.
    #[track_caller]
    fn listed(self, resource: &str, ids: usize) -> Self {
        self.has(resource, ids);
        self
    }

    #[track_caller]
    fn has(&self, resource: &str, ids: usize) {
        let what = format!("{ids} healthy ids");
        self.kubelet.wait_for(resource, &what, |it| {
            it.healthy().len() == ids && it.streams == 1
        });
    }
}

/// Returns the daemon's socket for the resource whose file name begins with `resource`.
#[track_caller]
fn socket_of(machine: &Machine, resource: &str) -> std::path::PathBuf {
    let begin = format!("rdma-device-plugin-{resource}~");
    let entries = std::fs::read_dir(machine.path("kubelet/device-plugins")).expect("a directory");
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    let is_it = |path: &std::path::PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy();
        name.starts_with(&begin)
    };
    paths.find(is_it).expect("a socket of the resource")
}

/// Returns the network namespace of the pod `team/train-0`, and writes a record that the namespace's netdev `rdma0` is
/// the netdev of [`SECOND`].
#[track_caller]
fn pod_with_second(machine: &Machine) -> Netns {
    let pod = Netns::new("train-0");
    pod.ip("link add rdma0 type veth peer name wire0");
    pod.ip("link set wire0 up");
    let netns = rdma_netns::netns::Netns::open(pod.path()).expect("a namespace");
    let record = json!({
        "format": 8, "phase": "attached", "pod": "team/train-0",
        "bootId": Linux::new().boot_id().expect("an id"),
        "key": {"network": "rails", "container": "c1", "interface": "eth0"},
        "netns": pod.path(), "netnsId": netns.id(),
        "rdmaMode": "shared", "dad": "off", "acceptRa": false, "config": {},
        "rails": [{
            "podName": "rdma0", "podIndex": pod.link("rdma0").expect("a netdev")["ifindex"],
            "rdma": {"name": SECOND.rdma, "index": 1, "node_guid": "", "parent": SECOND.address},
        }],
    });
    std::fs::create_dir_all(machine.path("state/attachments/rails")).expect("a directory");
    machine.write("state/attachments/rails/c1@eth0.json", &record.to_string());
    pod
}

fn ids(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}
