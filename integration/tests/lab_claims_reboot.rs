// SPDX-License-Identifier: Apache-2.0
//! In the lab, the node of a cluster loses power while pods have its virtual functions by claims, and boots again with
//! its disk: `scripts/test --full lab cluster-claims-reboot`. The test program starts again in each boot.

use integration::{
    Cluster, Snapshot,
    cluster::claims::{self, CLAIMS, PODS, end, install, none_is_left, remove},
    container_runtime::{Pod, TOOLS, exclusive::has_just, installed::records},
    lab::{Function, Lab, verbs_devices},
    power,
};
use serde_json::{Value, json};
use std::fs;

const MANIFEST: &str = "integration/manifests/rendered/claims-of-moved-vfs.yaml";

const NAMES: [&str; 2] = ["a", "b"];

/// The file on the node's disk with the node's network state before the installation.
const FRESH: &str = "/var/lib/reboot/fresh.json";

/// A node that has booted, with two virtual functions on each NIC, set up as at every boot.
fn booted() -> Lab {
    let lab = Lab::new(2);
    lab.give_hardware_addresses();
    lab.give_addresses();
    lab
}

fn pod(name: &str) -> Value {
    let container = json!({
        "name": "main", "image": TOOLS, "command": ["sleep", "1000000"],
        "resources": {"limits": {"rdma/vf": 1}},
    });
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [container]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// Returns the pod's function. Asserts that the container has the device files of no other function.
#[track_caller]
fn own(cluster: &Cluster<Lab>, pod: &Pod) -> Function {
    let [rdma] = &verbs_devices(&pod.netns())[..] else {
        panic!("{} has not one RDMA device", pod.name);
    };
    let mut functions = cluster.nics.functions.iter().flatten();
    let own = functions.find(|it| it.rdma == *rdma).expect("a function");
    has_just(pod.main(), own);
    own.clone()
}

/// The device that the scheduler allocated to the pod's claim.
#[track_caller]
fn allocated(cluster: &Cluster<Lab>, pod: &str) -> Value {
    let claims = cluster.list(CLAIMS);
    let mut claims = claims.iter();
    let claim = claims.find(|it| it["status"]["reservedFor"][0]["name"] == pod);
    let claim = claim.unwrap_or_else(|| panic!("{pod} has no claim"));
    claim["status"]["allocation"]["devices"]["results"][0]["device"].clone()
}

/// Removes the bridge of the primary network. The bridge gets another address at each boot, and is created with the
/// next pod.
#[track_caller]
fn remove_bridge(cluster: &Cluster<Lab>) {
    cluster.nics.host.ip("link delete dev cni0");
}

/// Pods have their devices when the node loses power.
fn first_boot() {
    let mut cluster = Cluster::on_disk(booted);
    remove_bridge(&cluster);
    let fresh = Snapshot::of(&cluster.nics.host);
    fs::write(FRESH, fresh.to_text()).expect("the disk");
    let functions = cluster.nics.functions.concat();
    let mut devices: Vec<String> = functions
        .iter()
        .map(|it| format!("rdma-vf-{}", it.pci.replace([':', '.'], "-")))
        .collect();
    devices.sort();
    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
    install(&mut cluster, MANIFEST, &devices);
    for name in NAMES {
        cluster.make(PODS, &pod(name));
        let pod = cluster.pod(name);
        own(&cluster, &pod);
    }
    cluster.report("two pods have a function each");
    // write the runtime's files to the disk: the test is not about their loss
    nix::unistd::sync();
    power::cut();
}

/// The pods from before the boot get the same devices again, and return them when they end.
fn second_boot() {
    assert_eq!(records().len(), NAMES.len(), "of the boot before");
    let [claims, specifications] = claims::files();
    assert_eq!((claims.len(), specifications.len()), (NAMES.len(), 0));
    let mut cluster = Cluster::on_disk(booted);
    let pods = NAMES.map(|name| cluster.pod_started("default", name, 1));
    for pod in &pods {
        let own = own(&cluster, pod).pci.replace([':', '.'], "-");
        let device = allocated(&cluster, &pod.name);
        assert_eq!(device, format!("rdma-vf-{own}"));
    }
    assert_eq!(records().len(), NAMES.len());
    let [claims, specifications] = claims::files();
    assert_eq!(
        (claims.len(), specifications.len()),
        (NAMES.len(), NAMES.len())
    );
    cluster.report("the pods have their functions again");
    end(&mut cluster, &["a"]);
    cluster.make(PODS, &pod("c"));
    let last = cluster.pod("c");
    own(&cluster, &last);
    cluster.report("another pod has the one that was given back, or a free one");
    end(&mut cluster, &["b", "c"]);
    assert!(records().is_empty(), "{:?}", records());
    none_is_left(&mut cluster);
    remove(&mut cluster, MANIFEST);
    let fresh = fs::read_to_string(FRESH).expect("of the boot before");
    remove_bridge(&cluster);
    Snapshot::of_text(&fresh).assert_restored(&cluster.nics.host);
}

#[test]
fn after_a_loss_of_power_pods_have_the_devices_of_their_claims_again() {
    match power::boot() {
        1 => first_boot(),
        2 => second_boot(),
        more => panic!("the machine booted {more} times"),
    }
}
