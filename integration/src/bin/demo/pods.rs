// SPDX-License-Identifier: Apache-2.0
//! Pods on real containerd: a node with two bonded NICs, and pods whose containers ask for one
//! `rdma/hca`, without hostNetwork, and get every rail.

use super::{PODS, heading, print};
use integration::{
    Netns, Snapshot,
    containerd::{
        SharedNode,
        shared::address,
        traffic::{self, End, gid_index},
    },
    nics,
};
use std::{env, time::Instant};

/// In the lab, full tier, shared mode.
pub(super) fn show() {
    let start = Instant::now();
    let node = SharedNode::new();
    let host = &node.nics.host;

    let runtime = node.containerd.cri().version();
    let runtime = runtime.unwrap_or_else(|status| panic!("{}", status.message()));
    heading(&format!(
        "A node with {runtime}, and two bonded NICs: one RDMA device and one IPv6 prefix a bond"
    ));
    print(&host.run("rdma link show"));
    for rail in 0..2 {
        let netdev = nics::netdev(rail);
        print(&host.run(&format!("ip -6 -brief address show dev {netdev}")));
    }
    println!("The chain, in which nothing names a device:\n");
    println!("{:#}", node.list().plugins[1]);

    heading("A pod that asks for nothing gets nothing");
    let plain = node.plain("plain");
    print(&plain.netns().run("ip -brief link show"));
    node.remove(plain);
    let before = Snapshot::of(host);

    heading("Two pods that ask for one rdma/hca");
    let pods = PODS.map(|name| {
        let began = Instant::now();
        let pod = node.containerd.pod(&node.wish(name));
        println!("{name} runs, {:.1} s", began.elapsed().as_secs_f64());
        pod
    });
    println!("\nIn {}'s container:\n", PODS[0]);
    let container = pods[0].main();
    for line in [
        "ls /dev/infiniband",
        "ip -brief address show",
        "ip -6 rule list",
    ] {
        println!("# {line}");
        print(&container.run(line));
    }

    heading("RDMA from pod-b's container to pod-a's, on every rail");
    let netns = [0, 1].map(|pod: usize| pods[pod].netns());
    let table: Vec<Row> = [(0, true), (0, false), (1, true), (1, false)]
        .map(|(rail, ipv6)| {
            let addresses = [0, 1].map(|pod: usize| address(&netns[pod], rail, ipv6));
            let rdma = nics::rdma(rail);
            let end = |pod: usize| End {
                container: pods[pod].main(),
                rdma: &rdma,
                address: &addresses[pod],
            };
            row(rail, [end(0), end(1)], &netns)
        })
        .into();

    heading("pod-a is deleted; pod-b is killed, and deleted then");
    let [deleted, killed] = pods;
    killed.kill();
    for pod in [deleted, killed] {
        node.remove(pod);
    }
    before.assert_restored(host);
    println!("links, addresses, routes and rules of the host: as before, bit for bit");
    println!("records of the chain: {}", node.records());

    heading("In short");
    println!(
        "{:<5} {:<6} {:<46} {:>6} {:>24}",
        "rail", "", "pod-a's address, GID index", "rping", "ib_read_bw -q 30, MB/s"
    );
    for row in table {
        let to = format!("{} [{}]", row.address, row.gid);
        println!(
            "{:<5} {:<6} {to:<46} {:>6} {:>24.1}",
            row.rail, row.family, "ok", row.bandwidth
        );
    }
    // as integration/lab/vm decides it
    let cpus = match env::var("RDMA_LAB_KVM").as_deref() {
        Ok("1") => "whose NICs are software",
        _ => "whose CPUs are emulated",
    };
    println!(
        "\nhost restored: yes    {:.0} s in the VM, {cpus}: the bandwidth says nothing of hardware",
        start.elapsed().as_secs_f64(),
    );
}

/// A line of the table.
struct Row {
    rail: usize,
    family: &'static str,
    address: String,
    gid: usize,
    bandwidth: f64,
}

fn row(rail: usize, [server, client]: [End<'_>; 2], netns: &[Netns; 2]) -> Row {
    let family = match server.address.contains(':') {
        true => "IPv6",
        false => "IPv4",
    };
    traffic::rping(server, client);
    let by_tcp = address(&netns[0], rail, false);
    let bandwidth = traffic::read_bandwidth(server, client, &by_tcp, 30);
    println!("rail {rail} over {family}: rping and ib_read_bw done");
    Row {
        rail,
        family,
        address: server.address.to_owned(),
        gid: gid_index(server),
        bandwidth,
    }
}
