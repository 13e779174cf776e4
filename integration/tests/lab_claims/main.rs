// SPDX-License-Identifier: Apache-2.0
//! In the lab, a real cluster of one node whose `rdma/hca` is allocated by claims (dynamic resource allocation):
//! `scripts/test --full lab cluster-claims` with Kubernetes 1.37, `cluster-claims-1.36` with 1.36. Scheduler, kubelet
//! and container runtime are real. The pods are the unchanged examples, and some pods that name their claims.

mod driver;
mod named;
mod parents;

use integration::{
    Cluster, Netns, Snapshot,
    cluster::{
        claims::{self, CLAIMS, PLACES, PODS, install, none_is_left, remove},
        is_true, traffic,
    },
    container_runtime::{
        Pod,
        installed::{Files, records},
        shared::{has_all_rails, nodes_of_all_rails, rping_on_all_rails},
    },
    lab::NICS,
    nics, wait,
};
use serde_json::{Value, json};
use std::{
    thread,
    time::{Duration, Instant},
};

/// The pods of `10-bandwidth.yaml` and of `10-bandwidth-host-network.yaml` in `conf/examples`, in the files' order.
const PAIR: [&str; 2] = ["rdma-test-pod", "rdma-test-pod-1"];

/// The manifest that the chart renders with `dra` set in its values.
const MANIFEST: &str = "integration/manifests/rendered/claims.yaml";

/// The names of the node's devices.
const DEVICES: [&str; 3] = [
    "rdma-hca-all",
    "rdma-hca-0000-21-00-0",
    "rdma-hca-0000-41-00-0",
];

/// Waits until the pod `name` runs, and returns the pod. Asserts that the pod has the device of all rails by a claim.
#[track_caller]
fn claiming(cluster: &mut Cluster, name: &str) -> Pod {
    let pod = cluster.pod(name);
    let pod_object = cluster.get(&format!("{PODS}/{name}"));
    let claim = pod_object["status"]["extendedResourceClaimStatus"]["resourceClaimName"].as_str();
    let claim = claim.unwrap_or_else(|| panic!("it has no claim: {pod_object:#}"));
    let claim = cluster.get(&format!("{CLAIMS}/{claim}"));
    let results = &claim["status"]["allocation"]["devices"]["results"];
    assert_eq!(results[0]["device"], "rdma-hca-all", "{claim:#}");
    assert_eq!(pod.main().rdma_nodes(), nodes_of_all_rails());
    pod
}

/// The example's pods with `hostNetwork`. The driver does not wait for their network.
fn of_the_host_have_the_devices(cluster: &mut Cluster) {
    cluster.types("kubectl apply -f conf/examples/10-bandwidth-host-network.yaml");
    for name in PAIR {
        claiming(cluster, name);
    }
    assert!(records().is_empty(), "{:?}", records());
    cluster.report("pods with hostNetwork have the devices");
    end(cluster, &[]);
}

/// Asserts that the container's environment names the pod's rails, each with an RDMA device and a GID index.
fn knows_its_rails(pod: &Pod) {
    let output = pod.main().sh("echo \"$RDMA_RAILS\"");
    let rails: Value = serde_json::from_str(&output).expect("JSON");
    let rails = rails.as_array().expect("a list");
    for (number, rail) in rails.iter().enumerate() {
        assert_eq!(rail["interface"], format!("rdma{number}"), "{output}");
        assert_eq!(rail["rdmaDevice"], nics::rdma(number), "{output}");
        assert!(rail["gidIndex"].is_u64(), "{output}");
    }
    assert_eq!(rails.len(), NICS.len(), "{output}");
}

fn of_the_example_have_all_rails(cluster: &mut Cluster) -> [Pod; 2] {
    cluster.types("kubectl apply -f conf/examples/10-bandwidth.yaml");
    let pair = PAIR.map(|name| claiming(cluster, name));
    pair.iter().for_each(has_all_rails);
    pair.iter().for_each(knows_its_rails);
    // the CDI specifications existed when the network of each pod was ready
    let events = cluster.types("kubectl events -o json");
    assert!(!events.contains("CDI device injection failed"), "{events}");
    assert_eq!(records().len(), 2);
    let [claims, specifications] = claims::files();
    assert_eq!((claims.len(), specifications.len()), (2, 2));
    cluster.report("the example's pods have all rails");
    pair
}

/// The driver is killed, and kubelet restarts it: running pods continue, and the next pod gets its rails.
fn are_served_after_a_kill(cluster: &mut Cluster, pair: [Pod; 2]) -> [Pod; 2] {
    let of_container = |pod: &Value| pod["status"]["containerStatuses"][0].clone();
    let container = of_container(&claims::daemon(cluster));
    let id = container["containerID"].as_str().expect("an id").to_owned();
    let id = id.split_once("://").expect("a runtime and an id").1;
    cluster.runtime.cri().kill(id);
    // deletes one pod while the driver may still be away; the pod is created again later
    let [first, second] = pair;
    let path = format!("{PODS}/{}", second.name);
    cluster.delete(PODS, &[&second.name]);
    cluster.until("the driver was started again", |it| {
        let daemon = claims::daemon(it);
        of_container(&daemon)["restartCount"] == 1 && is_true(&daemon, "Ready")
    });
    cluster.report("the driver was started again");
    cluster.until("the second pod is gone", |it| it.get(&path).is_null());
    has_all_rails(&first);
    cluster.types("kubectl apply -f conf/examples/10-bandwidth.yaml");
    let second = claiming(cluster, &second.name);
    has_all_rails(&second);
    cluster.report("the second pod has come again");
    [first, second]
}

/// A NIC loses its carrier and gets it back. In between, its device in the slice has a taint.
fn nics_without_carrier_are_tainted(cluster: &mut Cluster) {
    let change = |cluster: &mut Cluster, to: &str, count: usize| {
        let port = NICS[0];
        let at = Instant::now();
        cluster
            .nics
            .host
            .run(&format!("ip link set dev {port} {to}"));
        let end = at + wait::TIMEOUT;
        while claims::devices(cluster).1.len() != count {
            assert!(
                Instant::now() < end,
                "{port} {to}: the slice does not say so"
            );
            thread::sleep(Duration::from_millis(100));
        }
        cluster.report(&format!(
            "{port} {to}: in the slice {:?} later",
            at.elapsed()
        ));
    };
    change(cluster, "down", 1);
    change(cluster, "up", 0);
}

/// The slice shows the current network of a NIC's bond, by which claims can select the NIC.
fn nics_report_their_networks(cluster: &mut Cluster) {
    let [_, device, _] = DEVICES;
    let prefix = |cluster: &Cluster| claims::attribute(cluster, device, "ipv6Prefix");
    let bond = claims::attribute(cluster, device, "bond");
    let bond = bond["string"].as_str().expect("a bond").to_owned();
    let before = prefix(cluster);
    assert!(before["string"].is_string(), "{before}");
    // the kernel lists the newest address first
    for (verb, expected) in [("add", json!({"string": "fd77::/64"})), ("del", before)] {
        let at = Instant::now();
        cluster
            .nics
            .host
            .ip(&format!("address {verb} fd77::5/64 dev {bond}"));
        cluster.until(
            &format!("{bond} {verb}: the slice reports {expected}"),
            |it| prefix(it) == expected,
        );
        let address = claims::attribute(cluster, device, "ipv6Address");
        assert_eq!(address["string"] == "fd77::5", verb == "add", "{address}");
        let took = at.elapsed();
        cluster.report(&format!("address {verb}: in the slice {took:?} later"));
    }
}

/// The example's pods end. Asserts that nothing of them remains.
fn end(cluster: &mut Cluster, netns: &[Netns]) {
    cluster.delete(PODS, &PAIR);
    cluster.until("they are gone", |it| {
        it.list(PODS).is_empty() && netns.iter().all(|it| !it.path().exists())
    });
    assert!(records().is_empty(), "{:?}", records());
    none_is_left(cluster);
    cluster.report("the pods are gone");
}

#[test]
fn unchanged_pods_are_served_by_claims() {
    let mut cluster = Cluster::new();
    let files = Files::below(&PLACES);
    let network = Snapshot::of(&cluster.nics.host);
    let kubelet_started = driver::takes_the_device_plugins_place(&mut cluster);
    install(&mut cluster, MANIFEST, &DEVICES);
    nics_report_their_networks(&mut cluster);
    of_the_host_have_the_devices(&mut cluster);
    let pair = of_the_example_have_all_rails(&mut cluster);
    let [server, client] = are_served_after_a_kill(&mut cluster, pair);
    rping_on_all_rails([&server, &client]);
    traffic::rping(&cluster, PAIR, 0);
    traffic::read_bandwidth(&cluster, PAIR, 1, 30);
    cluster.report("there was RDMA between them on all rails");
    nics_without_carrier_are_tainted(&mut cluster);
    driver::is_rolled_out_below_pods(&mut cluster, &[&server, &client]);
    driver::is_away_for_long(&mut cluster, &[&server, &client]);
    end(&mut cluster, &[server.netns(), client.netns()]);
    parents::are_vlans(&mut cluster);
    driver::outlives_the_device_plugin(&mut cluster, kubelet_started);
    named::claims(&mut cluster);
    none_is_left(&mut cluster);
    remove(&mut cluster, MANIFEST);
    // kubelet creates the directory for the mount (DirectoryOrCreate)
    Files::below(&PLACES).assert_as(&files, &["/var/run/cdi"]);
    network.assert_restored(&cluster.nics.host);
}
