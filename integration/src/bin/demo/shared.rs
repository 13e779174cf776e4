//! Bonded NICs that pods share: two nodes with two bonds each and a prefix of their own on every
//! bond; pods without hostNetwork get a child of each, addresses and GIDs.

use super::{PODS, heading, print};
use integration::{
    Bonded, Snapshot, bonded,
    rails::{BONDS, Side},
};
use std::{fs, time::Instant};

/// In the lab, shared mode.
pub(super) fn show() {
    let start = Instant::now();
    let bonded = Bonded::new();
    let host = &bonded.rails.host;
    let before = Snapshot::of(host);
    let gids = || BONDS.map(|bond| bonded.gids(bond));
    let gids_before = gids();

    heading("Two nodes, two LACP bonds each: one RDMA device and one IPv6 prefix a bond");
    print(&host.run("rdma link show"));
    let addresses = BONDS.map(|bond| {
        let show = format!("ip -6 -brief address show dev {}", bond.netdev());
        host.run(&show)
    });
    print(&addresses.concat());

    heading("ADD for a pod on each node: nothing in it is of one node but the bonds' names");
    let sides = [Side::A, Side::B];
    println!("{:#}\n", bonded.configuration(sides[0]));
    let pods = [0, 1].map(|index| {
        let began = Instant::now();
        let configuration = bonded.configuration(sides[index]);
        let pod = bonded.pod(sides[index], PODS[index], configuration);
        let seconds = began.elapsed().as_secs_f64();
        println!("{} is attached, {seconds:.2} s", PODS[index]);
        pod
    });

    heading("What pod-a has: a child of each bond, its addresses, a table for each rail");
    print(&pods[0].netns.run("ip -brief address show"));
    print(&pods[0].netns.run("ip -6 rule list"));
    print(&pods[0].netns.run("ip -6 route show table 1000"));
    let file = bonded
        .state(Side::A)
        .join("rails/net/default_pod-a/rails.json");
    println!("rails.json, for programs that ask for a GID index:");
    print(&fs::read_to_string(file).expect("rails.json"));

    heading("RDMA from pod-b to pod-a, on every rail, by the GID indices of the results");
    let mut table = vec![];
    for rail in 0..2 {
        for (family, ipv6) in [("IPv6", true), ("IPv4", false)] {
            let bandwidth = bonded::traffic(&pods[0], &pods[1], rail, ipv6);
            println!("rail {rail} over {family}: rping and ib_write_bw done");
            let ends = [1, 0].map(|pod: usize| pods[pod].address(rail, ipv6));
            table.push((rail, family, ends, bandwidth));
        }
    }

    heading("DEL for pod-a; pod-b's namespace dies before its DEL");
    pods[1].netns.die();
    for pod in &pods {
        bonded.delete(pod);
    }
    before.assert_restored(host);
    integration::wait::until("the pods' GIDs are gone", || gids() == gids_before);
    let held = sides.map(|side| bonded.held(side).len());
    println!("links, addresses, routes, rules and GIDs of the host: as before, bit for bit");
    println!("addresses still held: {} and {}", held[0], held[1]);

    heading("In short");
    println!(
        "{:<5} {:<5} {:<32} {:<32} {:>6} {:>18}",
        "rail", "", "from pod-b, GID index", "to pod-a, GID index", "rping", "ib_write_bw, MB/s"
    );
    for (rail, family, ends, bandwidth) in table {
        let [from, to] = ends.map(|(address, index)| format!("{address} [{index}]"));
        println!(
            "{rail:<5} {family:<5} {from:<32} {to:<32} {:>6} {bandwidth:>18.1}",
            "ok"
        );
    }
    println!(
        "\nhost restored: yes    {:.0} s in the VM, whose CPUs are emulated: the bandwidth says \
         nothing of hardware",
        start.elapsed().as_secs_f64(),
    );
}
