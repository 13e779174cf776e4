// SPDX-License-Identifier: Apache-2.0
//! In the lab, exclusive devices in containers of a real runtime:
//! `integration/lab/vm --tier full --exclusive --memory 2560`, one test at a time. Containers get devices by CDI
//! names.

use integration::{
    ContainerRuntime, Netns,
    container_runtime::{
        Container, ExclusiveNode, Pod, PodSpec,
        exclusive::{BY_CDI, has_just},
        traffic::{self, End},
    },
    kubelet::{Allocation, node::Node},
    lab::{Function, Lab, ipv4, ipv6, uverbs},
    smc::{OneCpu, pods::UEID, shown},
    wait,
};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

const NAMES: [&str; 2] = ["one", "two"];

/// A node with two virtual functions on each NIC.
#[track_caller]
fn node() -> ExclusiveNode {
    let lab = Lab::new(2);
    lab.give_addresses();
    let node = Node::start(BY_CDI);
    let runtime = ContainerRuntime::start(&node.path("cdi"));
    let chain = json!({
        "capabilities": {"io.kubernetes.cri.pod-annotations": true}, "smcUeid": UEID,
    });
    ExclusiveNode::new(lab, node, runtime, &chain)
}

/// Allocates a function of a NIC, the one with the pod's number, to a container of this pod.
#[track_caller]
fn give(node: &ExclusiveNode, pod: usize, nic: usize, container: &str) -> Allocation {
    node.allocate(NAMES[pod], container, &node.lab.functions[nic][pod].pci)
}

#[track_caller]
fn end(node: &ExclusiveNode, pods: impl IntoIterator<Item = Pod>) {
    pods.into_iter().for_each(|pod| node.remove(pod));
    node.before.assert_restored(&node.lab.host);
}

/// Asserts that the container cannot open the device, neither by its name nor by a device node that the test creates.
#[track_caller]
fn cannot_open(container: &Container, function: &Function) {
    let (name, major, minor) = uverbs(&function.rdma);
    let tried = container.try_sh(&format!("ibv_devinfo -d {}", function.rdma));
    assert_ne!(tried.code, 0, "{}", tried.output);
    container.sh(&format!("mknod /tmp/{name} c {major} {minor}"));
    let tried = container.try_sh(&format!("cat </tmp/{name}"));
    assert!(tried.output.contains("not permitted"), "{}", tried.output);
}

/// One node serves all steps, because its start takes long.
#[test]
fn pods_have_just_their_own_devices_and_smc_r_where_they_request_it() {
    let node = node();
    each_container_sees_and_opens_just_its_own_device(&node);
    a_pod_that_asks_for_smc_r_by_annotation_has_it_on_its_rail(&node);
    pods_started_in_parallel_have_the_right_nodes_though_numbers_went_round(&node);
}

fn each_container_sees_and_opens_just_its_own_device(node: &ExclusiveNode) {
    let pods = [0, 1].map(|pod| {
        let given = ["main", "sidecar"].map(|container| {
            let nic = usize::from(container == "sidecar");
            give(node, pod, nic, container)
        });
        let spec = PodSpec::new(NAMES[pod])
            .container("main", &given[..1])
            .container("sidecar", &given[1..]);
        node.runtime.pod(&spec)
    });
    for (number, pod) in pods.iter().enumerate() {
        let functions = node.lab.rails(number);
        for (nic, container) in pod.containers.iter().enumerate() {
            has_just(container, functions[nic]);
            cannot_open(container, functions[1 - nic]);
            cannot_open(container, node.lab.rails(1 - number)[nic]);
            let env = container.sh("echo $PCIDEVICE_ALIYUN_ERDMA");
            assert_eq!(env.trim(), functions[nic].pci);
        }
    }
    for nic in 0..2 {
        let addresses = [0, 1].map(|pod| ipv6(nic, pod));
        let end = |pod: usize| End {
            container: &pods[pod].containers[nic],
            rdma: &node.lab.rails(pod)[nic].rdma,
            address: &addresses[pod],
        };
        traffic::rping(end(0), end(1));
    }
    end(node, pods);
}

fn pods_started_in_parallel_have_the_right_nodes_though_numbers_went_round(node: &ExclusiveNode) {
    let functions = ["uverbs1", "uverbs2"].map(|name| node.lab.numbered(name));
    let lowest = node.lab.numbered("uverbs0");
    let specs = [0, 1].map(|pod: usize| {
        let given = node.allocate(NAMES[pod], "main", &functions[pod].pci);
        PodSpec::new(NAMES[pod]).container("main", &[given])
    });
    // a device is removed between Allocate and ADD: each move takes the lowest free number
    let rdma = &lowest.rdma;
    node.lab.host.run(&format!("rdma link delete {rdma}"));
    let pods = thread::scope(|scope| {
        let started = specs.each_ref().map(|spec| {
            let started = scope.spawn(|| node.runtime.pod(spec));
            // the pod with the lower number moves its device first if nothing delays it
            thread::sleep(Duration::from_millis(300));
            started
        });
        started.map(|it| it.join().expect("the pod came"))
    });
    let now = functions.each_ref().map(|it| uverbs(&it.rdma).0);
    println!("uverbs1 is now {}, uverbs2 is now {}", now[0], now[1]);
    assert_ne!(now, ["uverbs1", "uverbs2"], "no number changed");
    // the number that is free now belongs to the removed device again
    let netdev = &lowest.netdev;
    let again = format!("rdma link add {rdma} type rxe netdev {netdev}");
    node.lab.host.run(&again);
    for (pod, function) in pods.iter().zip(&functions) {
        has_just(pod.main(), function);
        cannot_open(pod.main(), &lowest);
    }
    has_not(node, &pods, &functions);
    end(node, pods);
}

/// Asserts that neither pod can open the device of the other, and that the CDI file has both devices' numbers.
#[track_caller]
fn has_not(node: &ExclusiveNode, pods: &[Pod; 2], functions: &[Function; 2]) {
    for (pod, function) in pods.iter().zip(functions.iter().rev()) {
        cannot_open(pod.main(), function);
    }
    let held: Vec<_> = functions
        .iter()
        .map(|it| node.node.cdi_nodes(&it.pci))
        .collect();
    let true_ones: Vec<_> = functions.iter().map(|it| vec![uverbs(&it.rdma)]).collect();
    assert_eq!(held, true_ones, "the CDI file");
}

fn a_pod_that_asks_for_smc_r_by_annotation_has_it_on_its_rail(node: &ExclusiveNode) {
    let peer = PathBuf::from(env!("CARGO_BIN_EXE_smc-peer"));
    let pods = [0, 1].map(|pod| {
        let given = give(node, pod, 0, "main");
        let spec = PodSpec::new(NAMES[pod])
            .annotation("network.alibabacloud.com/erdma-smcr", "true")
            .mount(&peer)
            .container("main", &[given]);
        node.runtime.pod(&spec)
    });
    let netns = [0, 1].map(|pod: usize| pods[pod].netns());
    // the port of an emulated function can come up later than its pod
    wait::until("the ports with a pnet id are up", || {
        let ports = shown(&netns[0])["rdmaPorts"].take();
        let mut ports = ports.as_array().expect("a list").iter();
        ports.all(|it| it["pnetId"].is_null() || it["active"] == true)
    });
    // the primary interface is in another network, which has no GID
    for (address, mode) in [
        (pods[0].addresses()[0].clone(), "tcp"),
        (ipv4(0, 0), "smcr"),
    ] {
        let mut connections = exchange(&peer, &pods, &netns, &format!("{address}:7000"));
        // the pods have no real-time priority with which to win the kernel's race: see `OneCpu`
        for port in 7001..7003 {
            if mode == "tcp" || !connections.iter().any(is_late) {
                break;
            }
            println!("{address}: the first link was late");
            connections = exchange(&peer, &pods, &netns, &format!("{address}:{port}"));
        }
        let modes: Vec<_> = connections.iter().map(|it| &it["mode"]).collect();
        assert_eq!(modes, [mode, mode], "{address}: {connections:#?}");
    }
    end(node, pods);
}

/// Returns true if the connection fell back to TCP because its first link was not confirmed in time.
fn is_late(connection: &Value) -> bool {
    let Value::Object(fallback) = &connection["fallback"] else {
        return false;
    };
    let late = ["0x02010000", "0x02020000"];
    fallback
        .values()
        .any(|it| late.iter().any(|late| it["code"] == *late))
}

/// Opens a connection from the second pod to `address` of the first, exchanges a MiB on it, and returns the connection
/// as reported at both ends.
#[track_caller]
fn exchange(peer: &Path, pods: &[Pod; 2], netns: &[Netns; 2], address: &str) -> [Value; 2] {
    let program = peer.display();
    let serving = format!("sleep 600 | {program} server --hold {address}");
    let asking = format!("sleep 600 | {program} client --bytes 1048576 --hold {address}");
    thread::scope(|scope| {
        let served = scope.spawn(|| pods[0].main().sh(&serving));
        wait::until("smc-peer listens", || {
            let listening = pods[0].main().sh("ss -Hltn");
            listening.contains(&format!("{address} ")) || served.is_finished()
        });
        let one = OneCpu::begin();
        let client = scope.spawn(|| pods[1].main().sh(&asking));
        let connections = wait_for_connections(netns);
        drop(one);
        // ends the standard input of server and client, which end then; the container's first process ignores the
        // signal
        pods[1].main().sh("killall sleep");
        let output = client.join().expect("the client succeeded");
        assert!(output.contains("equal"), "{output}");
        pods[0].main().sh("killall sleep");
        served.join().expect("the server succeeded");
        connections
    })
}

/// Waits until both pods have a connection, and returns them.
#[track_caller]
fn wait_for_connections(netns: &[Netns; 2]) -> [Value; 2] {
    let mut connections = [vec![], vec![]];
    wait::until("both have a connection", || {
        connections = netns.each_ref().map(integration::smc::active);
        connections.iter().all(|it| !it.is_empty())
    });
    connections.map(|mut it| {
        assert_eq!(it.len(), 1, "{it:#?}");
        it.remove(0)
    })
}
