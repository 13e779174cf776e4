// SPDX-License-Identifier: Apache-2.0
//! Demonstration of a Kubernetes cluster of one node with two bonded NICs: the commands of an operator
//! and of a user, with their output.

use super::{heading, print};
use integration::{
    Cluster, Snapshot,
    cluster::traffic,
    container_runtime::{Pod, installed::records, shared::has_all_rails},
    control_plane::nodes::NODE,
    nics, pages,
};
use std::{env, time::Instant};

/// The page with the operator's commands.
const PAGE: &str = "docs/deploy.md";

/// The example, and its pods.
const EXAMPLE: &str = "conf/examples/10-bandwidth.yaml";
const PODS: [&str; 2] = ["rdma-test-pod", "rdma-test-pod-1"];

/// Shows a cluster in the lab, in tier `full` and shared mode.
pub(super) fn show() {
    let start = Instant::now();
    let mut cluster = Cluster::new();

    heading(
        "A Kubernetes cluster: one node with two bonded NICs, one RDMA device and one IPv6 prefix a bond",
    );
    types(&cluster, "kubectl get nodes -o wide");
    types(&cluster, "rdma link show");
    for rail in 0..2 {
        let netdev = nics::netdev(rail);
        types(&cluster, &format!("ip -6 -brief address show dev {netdev}"));
    }

    heading("Installed by two commands");
    for line in pages::commands(PAGE, "Which manifest", "kubectl") {
        types(&cluster, &line.replace("NODE", NODE));
    }
    types(
        &cluster,
        "kubectl -n kube-system rollout status ds/ack-rdma-dp-ds",
    );
    cluster.until("the node has ids", Cluster::has_ids);
    let ids = format!("kubectl get node {NODE} -o jsonpath='{{.status.allocatable.rdma/hca}}'");
    types(&cluster, &ids);
    let before = Snapshot::of(&cluster.nics.host);

    heading("Two pods that ask for one rdma/hca, without hostNetwork");
    types(&cluster, &format!("kubectl apply -f {EXAMPLE}"));
    let wait = format!("kubectl wait --for=condition=Ready -f {EXAMPLE} --timeout=5m");
    types(&cluster, &wait);
    let [server, client] = PODS.map(|name| cluster.pod(name));
    for line in [
        "ls /dev/infiniband",
        "ip -brief address show",
        "ip -6 rule list",
    ] {
        types(&cluster, &format!("kubectl exec {} -- {line}", PODS[0]));
    }
    let pair = [&server, &client];
    pair.iter().for_each(|pod| has_all_rails(pod));

    heading("RDMA from pod to pod, on every rail");
    let table = [0, 1].map(|rail| row(&cluster, rail));

    heading("The pods are deleted");
    types(
        &cluster,
        &format!("kubectl delete -f {EXAMPLE} --grace-period=1"),
    );
    let netns = pair.map(Pod::netns);
    cluster.until("their namespaces are gone", |_| {
        netns.iter().all(|it| !it.path().exists())
    });
    before.assert_restored(&cluster.nics.host);
    assert!(records().is_empty(), "{:?}", records());
    println!("links, addresses, routes and rules of the node: as before, bit for bit");

    heading("In short");
    println!(
        "{:<5} {:<44} {:>5} {:>17} {:>13} {:>6}",
        "rail",
        "the first pod's address, GID index",
        "rping",
        "ib_read_bw -q 30",
        "RDMA packets",
        "MB/s"
    );
    for row in table {
        let to = format!("{} [{}]", row.address, row.gid);
        println!(
            "{:<5} {to:<44} {:>5} {:>17} {:>13} {:>6.1}",
            row.rail, "ok", "ok", row.packets, row.bandwidth
        );
    }
    // `integration/lab/vm` uses KVM if this variable is 1
    let cpus = match env::var("RDMA_LAB_KVM").as_deref() {
        Ok("1") => "whose NICs are software",
        _ => "whose CPUs are emulated",
    };
    println!(
        "\nnode restored: yes    {:.0} s in the VM, {cpus}: MB/s do not show hardware's speed, and are sometimes 0",
        start.elapsed().as_secs_f64(),
    );
}

/// Prints the command line, runs it, and prints its output.
fn types(cluster: &Cluster, line: &str) {
    println!("$ {line}");
    print(&cluster.types(line));
}

struct Row {
    rail: usize,
    address: String,
    gid: usize,
    packets: u64,
    bandwidth: f64,
}

fn row(cluster: &Cluster, rail: usize) -> Row {
    let address = traffic::rping(cluster, PODS, rail);
    let rdma = nics::rdma(rail);
    let before = nics::sent_packets(&rdma);
    let bandwidth = traffic::read_bandwidth(cluster, PODS, rail, 30);
    println!("rail {rail}: rping and ib_read_bw done, by kubectl exec");
    let gid = traffic::gid_index(cluster, PODS[0], rail);
    Row {
        rail,
        address,
        gid,
        packets: nics::sent_packets(&rdma) - before,
        bandwidth,
    }
}
