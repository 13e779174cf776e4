// SPDX-License-Identifier: Apache-2.0
//! In the lab, a node loses power while pods have its devices, and boots again with its disk:
//! `integration/lab/vm --tier full --exclusive --memory 2560` and `--disk` for each of /var/lib/cni, /var/lib/kubelet,
//! /var/lib/containerd, /etc/cni/net.d, /opt/cni/bin and /var/lib/reboot. The test program starts again in each boot.

use integration::{
    ContainerRuntime, Snapshot,
    container_runtime::{
        ExclusiveNode, Pod, PodSpec,
        exclusive::{BY_CDI, VF, has_just},
        shared::address,
        traffic::{self, End},
    },
    daemon::rdma_device_plugin,
    kubelet::node::Node,
    lab::Lab,
    power,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
};

/// The chain's default directory of records.
const RECORDS: &str = "/var/lib/cni/rdma-cni/attachments/net";

/// The directory of `rdma-ipam`'s leases in this test.
const LEASES: &str = "/var/lib/cni/leases";

/// The file with which the first boot passes data to the second.
const HANDOVER: &str = "/var/lib/reboot/told.json";

/// The pods of the first boot, and the functions of each of their containers: NIC and number.
const PODS: [(&str, &[(usize, usize)]); 2] = [("one", &[(0, 0), (1, 0)]), ("two", &[(0, 1)])];

/// A node that has booted, with two virtual functions on each NIC, set up as at every boot.
#[track_caller]
fn booted() -> Lab {
    let lab = Lab::new(2);
    lab.give_hardware_addresses();
    lab.give_addresses();
    lab
}

/// Starts the daemon and the runtime with the files on the disk.
#[track_caller]
fn started(lab: Lab) -> ExclusiveNode {
    let node = Node::start_on_disk(BY_CDI);
    let runtime = ContainerRuntime::start_on_disk(&node.path("cdi"));
    let chain = json!({"ipam": {
        "type": "rdma-ipam", "from": "parent", "family": "both", "dataDir": LEASES,
    }});
    ExclusiveNode::new(lab, node, runtime, &chain)
}

/// A pod with one container for each function.
#[track_caller]
fn pod(node: &ExclusiveNode, name: &str, functions: &[(usize, usize)]) -> Pod {
    let mut spec = PodSpec::new(name);
    for (container, &(nic, number)) in ["main", "sidecar"].iter().zip(functions) {
        let given = node.allocate(name, container, &node.lab.functions[nic][number].pci);
        spec = spec.container(container, &[given]);
    }
    let pod = node.runtime.pod(&spec);
    for (container, &(nic, number)) in pod.containers.iter().zip(functions) {
        has_just(container, &node.lab.functions[nic][number]);
    }
    pod
}

/// Removes a sandbox, as kubelet removes a sandbox whose pod no longer exists.
#[track_caller]
fn remove(node: &ExclusiveNode, sandbox: &str) {
    let removed = node.runtime.cri().remove(sandbox);
    removed.unwrap_or_else(|status| panic!("{sandbox}: {}", status.message()));
}

/// The ids of all sandboxes that the runtime lists.
#[track_caller]
fn sandboxes(node: &ExclusiveNode) -> Vec<String> {
    let pods = node.runtime.cri().pods().expect("a list");
    let mut ids: Vec<String> = pods.into_iter().map(|it| it.id).collect();
    ids.sort();
    ids
}

/// The sandboxes with a record. Asserts that each record is readable.
#[track_caller]
fn records() -> Vec<String> {
    let files = fs::read_dir(RECORDS).into_iter().flatten().flatten();
    let mut sandboxes = vec![];
    for path in files.map(|it| it.path()) {
        if path.extension().is_none_or(|it| it != "json") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a record");
        let record: Value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{path:?}, {} bytes: {error}", text.len()));
        let container = record["key"]["container"].as_str().expect("a sandbox");
        sandboxes.push(container.to_owned());
    }
    sandboxes.sort();
    sandboxes
}

/// The leased addresses, each with its sandbox.
#[track_caller]
fn leases() -> BTreeMap<IpAddr, String> {
    let files = fs::read_dir(Path::new(LEASES).join("net"));
    let mut leases = BTreeMap::new();
    for path in files.into_iter().flatten().flatten().map(|it| it.path()) {
        let name = path.file_name().and_then(|it| it.to_str());
        if let Some(Ok(address)) = name.map(str::parse) {
            let text = fs::read_to_string(&path).expect("a lease");
            let holder = text.lines().next().expect("a holder");
            leases.insert(address, holder.to_owned());
        }
    }
    leases
}

/// Removes the empty files of ADD's results, and returns their number. An operator must do the same: containerd 1.7
/// does not sync these files, and they can be empty after a loss of power. With an empty file, containerd cannot remove
/// the sandbox (`failed to get network "net" cached result: … unexpected end of JSON input`).
fn take_empty_results_away() -> usize {
    let files = fs::read_dir("/var/lib/cni/results").expect("containerd's results");
    let files = files.map(|it| it.expect("a file").path());
    let is_empty = |path: &PathBuf| fs::metadata(path).is_ok_and(|it| it.len() == 0);
    let empty = files.filter(is_empty);
    empty
        .map(|it| fs::remove_file(it).expect("removed"))
        .count()
}

/// Returns the number of pods with a file that names their rails.
fn rails() -> usize {
    let pods = fs::read_dir("/var/lib/cni/rdma-cni/rails/net");
    pods.into_iter().flatten().count()
}

/// Returns the output of `rdma-device-plugin doctor` as one line.
#[track_caller]
fn doctor() -> String {
    let output = Command::new(rdma_device_plugin()).arg("doctor").output();
    let text = String::from_utf8(output.expect("it runs").stdout).expect("UTF-8");
    assert!(text.contains("\nkernel "), "{text}");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Starts pods, and cuts the node's power as soon as the last pod has started.
fn first_boot() {
    let lab = booted();
    let fresh = Snapshot::of(&lab.host);
    let node = started(lab);
    // sync all older files of the node; from here on the disk has only the files that the programs sync
    nix::unistd::sync();
    let mut sandboxes = BTreeMap::new();
    for (name, functions) in PODS {
        sandboxes.insert(name, pod(&node, name, functions).sandbox);
    }
    let handover = json!({
        "fresh": fresh.to_text(), "sandboxes": sandboxes, "leases": leases(),
    });
    let mut file = File::create(HANDOVER).expect("a file");
    file.write_all(handover.to_string().as_bytes())
        .expect("written");
    file.sync_all().expect("on the disk");
    power::cut();
}

/// The node boots again. `doctor` reports records from the earlier boot, verbs remove them, and pods get devices again.
fn second_boot() {
    let handover = fs::read(HANDOVER).expect("what the first boot wrote");
    let handover: Value = serde_json::from_slice(&handover).expect("JSON");
    let sandbox = |name: &str| {
        handover["sandboxes"][name]
            .as_str()
            .expect("an id")
            .to_owned()
    };
    let mut old: Vec<String> = PODS.iter().map(|(name, _)| sandbox(name)).collect();
    old.sort();

    let lab = booted();
    let fresh = Snapshot::of_text(handover["fresh"].as_str().expect("a snapshot"));
    fresh.assert_restored(&lab.host);
    assert_eq!(records(), old);
    assert_eq!(json!(leases()), handover["leases"]);
    let report = doctor();
    assert_eq!(
        report.matches("from an earlier boot").count(),
        2,
        "{report}"
    );
    for (name, _) in PODS {
        assert!(
            report.contains(&format!("pod default/{name}, ")),
            "{report}"
        );
    }
    fresh.assert_restored(&lab.host);

    let node = started(lab);
    assert_eq!(sandboxes(&node), old);
    let empty = take_empty_results_away();
    println!("{empty} of containerd's results came back empty");
    assert_eq!(records(), old, "a pod without RDMA recovers nothing");
    // in kubelet's order: the old sandbox is removed first
    remove(&node, &sandbox("one"));
    assert_eq!(records(), [sandbox("two")]);
    assert!(leases().values().all(|it| *it == sandbox("two")));
    node.before.assert_restored(&node.lab.host);
    // the pod `new` starts before kubelet removes the old sandbox of `two`
    let (_, functions) = PODS[1];
    let new = pod(&node, "new", functions);
    let of_new = vec![new.sandbox.clone()];
    assert_eq!(records(), of_new, "the old one is recovered");
    assert!(leases().values().all(|it| *it == new.sandbox));
    remove(&node, &sandbox("two"));
    has_just(new.main(), &node.lab.functions[0][1]);
    assert_eq!(records(), of_new);
    assert_eq!(leases().len(), 2, "IPv4 and IPv6: {:?}", leases());

    let (_, functions) = PODS[0];
    let one = pod(&node, "one", functions);
    let pods = [(&one, (0, 0)), (&new, (0, 1))];
    let addresses = pods.map(|(pod, _)| address(&pod.netns(), 0, true));
    let end = |number: usize| {
        let (pod, (nic, function)) = pods[number];
        End {
            container: pod.main(),
            rdma: &node.lab.functions[nic][function].rdma,
            address: &addresses[number],
        }
    };
    traffic::rping(end(0), end(1));
    // the daemon sees devices in pods, although it started before the first network namespace existed
    let kubelet = &node.node.kubelet;
    kubelet.wait_for(VF, "four functions", |it| it.healthy().len() == 4);
    for pod in [one, new] {
        node.remove(pod);
    }
    node.before.assert_restored(&node.lab.host);
    assert_eq!(records(), [""; 0]);
    assert_eq!(leases(), BTreeMap::new());
    assert_eq!(rails(), 0);
    assert_eq!(sandboxes(&node), [""; 0]);
    let report = doctor();
    assert!(!report.contains("from an earlier boot"), "{report}");
}

#[test]
fn after_a_loss_of_power_devices_are_restored_and_what_was_recorded_of_dead_pods_goes() {
    match power::boot() {
        1 => first_boot(),
        2 => second_boot(),
        more => panic!("the machine booted {more} times"),
    }
}
