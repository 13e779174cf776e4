// SPDX-License-Identifier: Apache-2.0
//! Demonstration with moved devices: two pods get two rails each, RDMA data flow between the pods
//! through these rails, and all devices return to the host.

use super::{PODS, attachment, heading, print, stop};
use integration::{
    Conflist, Snapshot,
    lab::{self, Lab, ipv4, ipv6},
    traffic::{self, End},
};
use std::time::Instant;

/// Shows the demonstration with four PCI functions of this machine.
pub(super) fn show(functions: &[String; 4]) {
    let start = Instant::now();
    let lab = Lab::on_host(functions).unwrap_or_else(|reason| stop(&reason));
    lab.give_addresses();
    let before = Snapshot::of(&lab.host);
    let pods = PODS.map(|name| lab.pod(name));

    heading("The host: two PCI functions for each pod");
    print(&lab.host.run("rdma link show"));

    heading("ADD for both pods: one conflist entry, two rails");
    let list = |pod: usize| Conflist::new("1.1.0", vec![lab.configuration(pod)]);
    println!("{:#}\n", list(0).plugins[0]);
    for (index, pod) in pods.iter().enumerate() {
        let attachment = attachment(index, pod);
        let began = Instant::now();
        let added = lab.runtime().add(&list(index), &attachment);
        added.unwrap_or_else(|outcome| panic!("{outcome}"));
        println!(
            "{} is attached, {:.2} s",
            PODS[index],
            began.elapsed().as_secs_f64()
        );
    }

    heading("What pod-a sees: its own RDMA devices and nothing else");
    print(&pods[0].run("ibv_devices"));
    print(&pods[0].run("ip -brief address show"));
    println!(
        "RDMA devices left on the host: {}",
        lab::verbs_devices(&lab.host).len()
    );

    heading("RDMA from pod-b to pod-a, on every rail");
    let mut table = vec![];
    for rail in 0..2 {
        let [server, client] = [0, 1].map(|pod| lab.rails(pod)[rail].rdma.clone());
        for (family, address) in [("IPv6", ipv6 as fn(usize, usize) -> String), ("IPv4", ipv4)] {
            let (to, from) = (address(rail, 0), address(rail, 1));
            let server = End {
                pod: &pods[0],
                rdma: &server,
                address: &to,
            };
            let client = End {
                pod: &pods[1],
                rdma: &client,
                address: &from,
            };
            traffic::rping(server, client);
            let bandwidth = traffic::write_bandwidth(server, client, &ipv4(rail, 0));
            println!("rail {rail} over {family}: rping and ib_write_bw done");
            table.push((rail, family, from.clone(), to.clone(), bandwidth));
        }
    }

    heading("DEL for pod-a; pod-b's namespace dies before its DEL");
    pods[1].die();
    for (index, pod) in pods.iter().enumerate() {
        let deleted = lab.runtime().del(&list(index), &attachment(index, pod));
        deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
    }
    before.assert_restored(&lab.host);
    print(&lab.host.run("rdma link show"));
    println!(
        "links, addresses, routes, rules and RDMA devices of the host: as before, bit for bit"
    );

    lab.take_addresses();

    heading("In short");
    println!(
        "{:<5} {:<5} {:<12} {:<12} {:>6} {:>18}",
        "rail", "", "from pod-b", "to pod-a", "rping", "ib_write_bw, MB/s"
    );
    for (rail, family, from, to, bandwidth) in table {
        println!(
            "{rail:<5} {family:<5} {from:<12} {to:<12} {:>6} {bandwidth:>18.1}",
            "ok"
        );
    }
    println!(
        "\nhost restored: yes    {:.0} s",
        start.elapsed().as_secs_f64()
    );
}
