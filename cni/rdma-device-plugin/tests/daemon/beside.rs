// SPDX-License-Identifier: Apache-2.0
//! Tests of pods whose GPUs kubelet allocated before their NICs.

use crate::{Machine, start};
use integration::{
    Daemon,
    kubelet::{
        DeviceManager,
        pod_resources::{Mood, PodResourcesServer, pod},
    },
    machine::Nic,
    stopwatch::Stopwatch,
};
use std::time::Duration;

const EXCLUSIVE: &str = r#"{"resources":[{"name":"rdma/nic","kind":"exclusive"}]}"#;
const GPU: &str = "nvidia.com/gpu";

/// A node with four NICs and four GPUs. The last two NICs and GPUs are on NUMA node 1.
struct Node {
    daemon: Daemon,
    kubelet: DeviceManager,
    pod_resources: PodResourcesServer,
    _machine: Machine,
}

fn nic(number: u64) -> String {
    format!("0000:{:02x}:00.0", 0x10 + number)
}

/// Returns a GPU id in the form of NVIDIA's device plugin.
fn gpu(number: u64) -> String {
    format!("GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3{number}")
}

impl Node {
    fn new() -> Self {
        let machine = Machine::with(&[]);
        for number in 0..4 {
            let numa_node = i32::from(number >= 2);
            machine.plug(&Nic {
                address: &nic(number),
                rdma: &format!("mlx5_{number}"),
                netdev: &format!("rail{number}"),
                numa_node,
                number,
            });
            machine.nvidia(
                &format!("0000:{:02x}:00.0", 0x90 + number),
                numa_node,
                &gpu(number),
            );
        }
        machine.configure(EXCLUSIVE);
        let kubelet = DeviceManager::started(&machine.path("kubelet"));
        let socket = machine.path("kubelet/pod-resources/kubelet.sock");
        let pod_resources = PodResourcesServer::start(&socket);
        let daemon = start(&machine);
        kubelet.wait_for("rdma/nic", "4 ids", |it| it.healthy().len() == 4);
        Self {
            daemon,
            kubelet,
            pod_resources,
            _machine: machine,
        }
    }

    /// Returns the preferred `count` ids among `available`.
    #[track_caller]
    fn prefers(&self, available: &[u64], count: usize) -> Vec<String> {
        let available: Vec<String> = available.iter().map(|number| nic(*number)).collect();
        let preferred = self.kubelet.prefer("rdma/nic", &available, &[], count);
        preferred.expect("a preference")
    }
}

#[test]
fn the_nics_beside_the_pods_own_gpus_are_preferred() {
    let node = Node::new();
    // the container's GPUs are unknown: the first NIC is preferred
    assert_eq!(node.prefers(&[0, 1, 2, 3], 1), [nic(0)]);
    let (second, third, shared) = (gpu(2), gpu(3), format!("{}::1", gpu(0)));
    let gpus: &[(&str, &[&str])] = &[(GPU, &[&second, &third])];
    node.pod_resources
        .set_pods(&[pod("default", "trainer-0", &[gpus])]);
    assert_eq!(node.prefers(&[0, 1, 2, 3], 2), [nic(2), nic(3)]);
    // `trainer-0` has its NICs now; `trainer-1` has a shared GPU
    let (a, b) = (nic(2), nic(3));
    let served: &[(&str, &[&str])] = &[(GPU, &[&second, &third]), ("rdma/nic", &[&a, &b])];
    let next: &[(&str, &[&str])] = &[(GPU, &[&shared])];
    node.pod_resources.set_pods(&[
        pod("default", "trainer-0", &[served]),
        pod("default", "trainer-1", &[next]),
    ]);
    assert_eq!(node.prefers(&[1, 0], 1), [nic(0)]);
    node.daemon
        .wait_for_log("near the container's accelerators");
}

/// If kubelet does not answer, the daemon returns a preference without the container's GPUs after a time limit.
#[test]
fn a_kubelet_that_does_not_say_whose_gpus_are_which_is_not_waited_for_long() {
    let node = Node::new();
    node.pod_resources.set_mood(Mood::Silent);
    let at = Stopwatch::start();
    assert_eq!(node.prefers(&[0, 1, 2, 3], 1), [nic(0)]);
    assert!(at.elapsed() < Duration::from_secs(5), "{:?}", at.elapsed());
}
