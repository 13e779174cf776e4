// SPDX-License-Identifier: Apache-2.0
//! In the lab, a real cluster of one node whose virtual functions are allocated by claims, to unchanged pods that ask
//! for `rdma/vf: 1`: `scripts/test lab cluster-claims-exclusive`. RDMA devices go into pods, and get other numbers.

use integration::{
    Cluster, Snapshot,
    cluster::claims::{PLACES, PODS, end, install, none_is_left, remove},
    container_runtime::{
        Pod, TOOLS,
        installed::{Files, records},
    },
    lab::{Function, Lab, uverbs, verbs_devices},
};
use serde_json::{Value, json};

const MANIFEST: &str = "integration/manifests/rendered/claims-of-moved-vfs.yaml";

const NAMES: [&str; 3] = ["a", "b", "c"];

fn pod(name: &str) -> Value {
    let container = json!({
        "name": "main", "image": TOOLS, "command": ["sleep", "1000000"],
        "resources": {"limits": {"rdma/vf": 1}},
    });
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [container]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// The name of a function's device in a pool.
fn device(function: &Function) -> String {
    format!("rdma-vf-{}", function.pci.replace([':', '.'], "-"))
}

/// The RDMA device that the pod has in its namespace; it is what its container has the one device file of.
#[track_caller]
fn own(pod: &Pod) -> String {
    let mut devices = verbs_devices(&pod.netns());
    let device = devices.pop().expect("an RDMA device");
    assert_eq!(devices, [] as [&str; 0]);
    let mut nodes = pod.main().rdma_nodes();
    nodes.retain(|(name, ..)| name != "rdma_cm");
    assert_eq!(nodes, [uverbs(&device)]);
    let said = pod.main().sh(&format!("ibv_devinfo -d {device}"));
    assert!(said.contains("PORT_ACTIVE"), "{said}");
    device
}

#[test]
fn each_container_has_its_own_function() {
    let mut cluster = Cluster::with(|| {
        let lab = Lab::new(2);
        lab.give_addresses();
        lab
    });
    let files = Files::below(&PLACES);
    // the lowest number is free: whatever moves first gets it
    let functions: Vec<Function> = cluster.nics.functions.concat();
    let mut functions: Vec<(u64, Function)> = functions
        .into_iter()
        .map(|function| (uverbs(&function.rdma).2, function))
        .collect();
    functions.sort_by_key(|(number, _)| *number);
    let (_, first) = functions.remove(0);
    let line = format!("rdma link delete {}", first.rdma);
    cluster.nics.host.run(&line);
    let network = Snapshot::of(&cluster.nics.host);
    let mut expected: Vec<String> = functions.iter().map(|(_, it)| device(it)).collect();
    expected.sort();
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    install(&mut cluster, MANIFEST, &expected);

    for name in NAMES {
        cluster.make(PODS, &pod(name));
    }
    let pods = NAMES.map(|name| cluster.pod(name));
    let mut had: Vec<String> = pods.iter().map(own).collect();
    let is_another = |(number, function): &&(u64, Function)| uverbs(&function.rdma).2 != *number;
    let others = functions.iter().filter(is_another).count();
    assert!(others > 0, "all have the numbers that they had");
    cluster.says(&format!(
        "three pods have a function each, {others} of them with another number than before"
    ));
    had.sort();
    let mut all: Vec<&String> = functions.iter().map(|(_, it)| &it.rdma).collect();
    all.sort();
    assert_eq!(had.iter().collect::<Vec<_>>(), all);

    cluster.runtime.cri().kill(&pods[1].main().id);
    let again = cluster.pod_started("default", &pods[1].name, 1);
    own(&again);
    cluster.says("a container that was started again has its own function");

    // another pod has what one gave back
    let given_back = own(&pods[0]);
    end(&mut cluster, &["a"]);
    cluster.make(PODS, &pod("d"));
    let last = cluster.pod("d");
    assert_eq!(own(&last), given_back);
    for pod in [&again, &pods[2]] {
        own(pod);
    }
    cluster.says("the next pod has the function that is free");
    end(&mut cluster, &["b", "c", "d"]);
    assert!(records().is_empty(), "{:?}", records());
    none_is_left(&mut cluster);
    remove(&mut cluster, MANIFEST);
    Files::below(&PLACES).assert_as(&files, &["/var/run/cdi"]);
    network.assert_restored(&cluster.nics.host);
}
