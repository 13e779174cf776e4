// SPDX-License-Identifier: Apache-2.0
//! In the lab, devices that are one pod's alone, in containers of a real runtime:
//! `integration/lab/vm --tier full --exclusive --memory 2560`, one test at a time.
//! Containers get their devices by CDI names.

use integration::{
    Conflist, ContainerRuntime, Netns, Snapshot,
    container_runtime::{
        Container, Pod, PodSpec,
        traffic::{self, End},
    },
    kubelet::{Allocation, Wish, node::Node},
    lab::{Function, Lab, ipv4, ipv6, uverbs},
    smc::{OneCpu, UEID, bridge, shown},
    wait,
};
use serde_json::{Value, json};
use std::{path::PathBuf, thread, time::Duration};

const VF: &str = "aliyun/erdma";

/// Virtual functions in the part of eRDMA's: under its name, each one pod's.
const BY_CDI: &str = r#"
resources:
- name: aliyun/erdma
  kind: exclusive
  devices: [{driver: igbvf}]
cdi: true
"#;

const NAMES: [&str; 2] = ["one", "two"];

struct Scene {
    // the first to end: pods restore their functions
    runtime: ContainerRuntime,
    node: Node,
    lab: Lab,
    before: Snapshot,
}

impl Scene {
    /// Two virtual functions on each NIC, all advertised, and a bridge.
    #[track_caller]
    fn new() -> Self {
        let lab = Lab::new(2);
        lab.give_addresses();
        let node = Node::start(BY_CDI);
        let runtime = ContainerRuntime::start(&node.path("cdi"));
        runtime.network.set(&list(&node));
        node.kubelet
            .wait_for(VF, "four functions", |it| it.healthy().len() == 4);
        node.knows("first");
        runtime.pod(&PodSpec::new("first")).remove();
        let before = Snapshot::of(&lab.host);
        Self {
            runtime,
            node,
            lab,
            before,
        }
    }

    /// The function that the pod of this number has on a NIC, allocated to a container of it.
    #[track_caller]
    fn give(&self, pod: usize, nic: usize, container: &str) -> Allocation {
        let id = self.lab.functions[nic][pod].pci.clone();
        self.give_function(NAMES[pod], &id, container)
    }

    #[track_caller]
    fn give_function(&self, pod: &str, id: &str, container: &str) -> Allocation {
        let wish = Wish::new(pod, container, VF, 1).reusing(&[id.to_owned()]);
        let given = self.node.allocate(&wish);
        assert_eq!(given.ids, [id]);
        assert!(given.given.devices.is_empty(), "paths besides CDI names");
        given
    }

    #[track_caller]
    fn end(&self, pods: impl IntoIterator<Item = Pod>) {
        for pod in pods {
            let name = pod.name.clone();
            pod.remove();
            self.node.free(&name);
        }
        self.before.assert_restored(&self.lab.host);
    }

    /// The function with the character device `uverbs`.
    #[track_caller]
    fn numbered(&self, name: &str) -> Function {
        let mut all = self.lab.functions.iter().flatten();
        let found = all.find(|it| uverbs(&it.rdma).0 == name);
        found.unwrap_or_else(|| panic!("none has {name}")).clone()
    }
}

/// A primary network, and after it the chain.
fn list(node: &Node) -> Conflist {
    let bridge = bridge(&node.path("networks"));
    let mut chain = node.chain(&[VF]);
    chain["capabilities"] = json!({ "io.kubernetes.cri.pod-annotations": true });
    chain["smcUeid"] = UEID.into();
    Conflist::new("1.0.0", vec![bridge, chain])
}

/// The device's node is the container's only one, and it is that device which is behind it.
#[track_caller]
fn has_just(container: &Container, function: &Function) {
    let mut nodes = container.rdma_nodes();
    nodes.retain(|(name, ..)| name != "rdma_cm");
    assert_eq!(nodes, [uverbs(&function.rdma)], "{function:?}");
    let said = container.sh(&format!("ibv_devinfo -d {}", function.rdma));
    assert!(said.contains("PORT_ACTIVE"), "{said}");
}

/// Neither by its name nor by a node made for it can the container open the device.
#[track_caller]
fn cannot_open(container: &Container, function: &Function) {
    let (name, major, minor) = uverbs(&function.rdma);
    let tried = container.try_sh(&format!("ibv_devinfo -d {}", function.rdma));
    assert_ne!(tried.code, 0, "{}", tried.said);
    container.sh(&format!("mknod /tmp/{name} c {major} {minor}"));
    let tried = container.try_sh(&format!("cat </tmp/{name}"));
    assert!(tried.said.contains("not permitted"), "{}", tried.said);
}

/// One scene serves all: to start one takes longer than any of these.
#[test]
fn pods_have_just_their_own_devices_and_smc_r_where_they_ask_for_it() {
    let scene = Scene::new();
    each_container_sees_and_opens_just_its_own_device(&scene);
    a_pod_that_asks_for_smc_r_by_annotation_has_it_on_its_rail(&scene);
    pods_started_in_parallel_have_the_right_nodes_though_numbers_went_round(&scene);
}

fn each_container_sees_and_opens_just_its_own_device(scene: &Scene) {
    let pods = [0, 1].map(|pod| {
        let given = ["main", "sidecar"].map(|container| {
            let nic = usize::from(container == "sidecar");
            scene.give(pod, nic, container)
        });
        let spec = PodSpec::new(NAMES[pod])
            .container("main", &given[..1])
            .container("sidecar", &given[1..]);
        scene.runtime.pod(&spec)
    });
    for (number, pod) in pods.iter().enumerate() {
        let functions = scene.lab.rails(number);
        for (nic, container) in pod.containers.iter().enumerate() {
            has_just(container, functions[nic]);
            cannot_open(container, functions[1 - nic]);
            cannot_open(container, scene.lab.rails(1 - number)[nic]);
            let env = container.sh("echo $PCIDEVICE_ALIYUN_ERDMA");
            assert_eq!(env.trim(), functions[nic].pci);
        }
    }
    for nic in 0..2 {
        let addresses = [0, 1].map(|pod| ipv6(nic, pod));
        let end = |pod: usize| End {
            container: &pods[pod].containers[nic],
            rdma: &scene.lab.rails(pod)[nic].rdma,
            address: &addresses[pod],
        };
        traffic::rping(end(0), end(1));
    }
    scene.end(pods);
}

fn pods_started_in_parallel_have_the_right_nodes_though_numbers_went_round(scene: &Scene) {
    let functions = ["uverbs1", "uverbs2"].map(|name| scene.numbered(name));
    let lowest = scene.numbered("uverbs0");
    let specs = [0, 1].map(|pod: usize| {
        let given = scene.give_function(NAMES[pod], &functions[pod].pci, "main");
        PodSpec::new(NAMES[pod]).container("main", &[given])
    });
    // between Allocate and ADD a device goes: each move takes the lowest free number
    let rdma = &lowest.rdma;
    scene.lab.host.run(&format!("rdma link delete {rdma}"));
    let pods = thread::scope(|scope| {
        let started = specs.each_ref().map(|spec| {
            let started = scope.spawn(|| scene.runtime.pod(spec));
            // the pod with the lower number moves first, if nothing delays it
            thread::sleep(Duration::from_millis(300));
            started
        });
        started.map(|it| it.join().expect("the pod came"))
    });
    let now = functions.each_ref().map(|it| uverbs(&it.rdma).0);
    println!("uverbs1 is now {}, uverbs2 is now {}", now[0], now[1]);
    assert_ne!(now, ["uverbs1", "uverbs2"], "no number changed");
    // and the number that is free leads to another device again
    let netdev = &lowest.netdev;
    let again = format!("rdma link add {rdma} type rxe netdev {netdev}");
    scene.lab.host.run(&again);
    for (pod, function) in pods.iter().zip(&functions) {
        has_just(pod.main(), function);
        cannot_open(pod.main(), &lowest);
    }
    has_not(scene, &pods, &functions);
    scene.end(pods);
}

/// Neither pod has the other's device.
#[track_caller]
fn has_not(scene: &Scene, pods: &[Pod; 2], functions: &[Function; 2]) {
    for (pod, function) in pods.iter().zip(functions.iter().rev()) {
        cannot_open(pod.main(), function);
    }
    let held: Vec<_> = functions
        .iter()
        .map(|it| scene.node.cdi_nodes(&it.pci))
        .collect();
    let true_ones: Vec<_> = functions.iter().map(|it| vec![uverbs(&it.rdma)]).collect();
    assert_eq!(held, true_ones, "the CDI file");
}

fn a_pod_that_asks_for_smc_r_by_annotation_has_it_on_its_rail(scene: &Scene) {
    let peer = PathBuf::from(env!("CARGO_BIN_EXE_smc-peer"));
    let pods = [0, 1].map(|pod| {
        let given = scene.give(pod, 0, "main");
        let spec = PodSpec::new(NAMES[pod])
            .annotation("network.alibabacloud.com/erdma-smcr", "true")
            .mount(&peer)
            .container("main", &[given]);
        scene.runtime.pod(&spec)
    });
    let netns = [0, 1].map(|pod: usize| pods[pod].netns());
    // the primary interface is of another network, of which no GID is
    for (address, mode) in [
        (pods[0].addresses()[0].clone(), "tcp"),
        (ipv4(0, 0), "smcr"),
    ] {
        let (program, port) = (peer.display(), 7000);
        let serving = format!("sleep 60 | {program} server --hold {address}:{port}");
        let asking = format!("sleep 60 | {program} client --bytes 1048576 --hold {address}:{port}");
        thread::scope(|scope| {
            let served = scope.spawn(|| pods[0].main().sh(&serving));
            wait::until("smc-peer listens", || {
                let listening = pods[0].main().sh("ss -Hltn");
                listening.contains(&format!("{address}:{port} ")) || served.is_finished()
            });
            let one = OneCpu::begin();
            let asked = scope.spawn(|| pods[1].main().sh(&asking));
            let carried = wait_for_connections(&netns);
            drop(one);
            assert_eq!(carried, [[mode], [mode]], "{address}: {}", shown(&netns[0]));
            // their standard input ends, and so do they; the container's own sleep takes no signal
            pods[1].main().sh("killall sleep");
            let said = asked.join().expect("the client succeeded");
            assert!(said.contains("equal"), "{said}");
            pods[0].main().sh("killall sleep");
            served.join().expect("the server succeeded");
        });
    }
    scene.end(pods);
}

/// How the connections of both are carried, as soon as both have one.
#[track_caller]
fn wait_for_connections(netns: &[Netns; 2]) -> [Vec<String>; 2] {
    let modes = |netns: &Netns| {
        let active = integration::smc::active(netns);
        let mode = |it: &Value| it["mode"].as_str().unwrap_or_default().to_owned();
        active.iter().map(mode).collect::<Vec<_>>()
    };
    let mut carried = [vec![], vec![]];
    wait::until("both have a connection", || {
        carried = netns.each_ref().map(modes);
        carried.iter().all(|it| !it.is_empty())
    });
    carried
}
