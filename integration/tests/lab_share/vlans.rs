// SPDX-License-Identifier: Apache-2.0
//! VLANs of a bond as parents: two tenants of one NIC.

use crate::{gids_are, nothing_is_left};
use integration::{
    Bonded, BondedPod, Snapshot,
    rails::{BONDS, Bond, Side},
    traffic::{self, End, Write},
};
use serde_json::json;

/// Creates the VLANs 100 and 200 on both sides' bonds of rail 0. Each VLAN is a network of its own; the rail's
/// router forwards its tagged frames between the sides.
fn make_vlans(bonded: &Bonded) {
    let (mut ours, mut theirs) = (vec![], vec![]);
    for id in [100, 200] {
        theirs.push(format!("link add name br{id} type bridge"));
        theirs.push(format!("link set dev br{id} up"));
        for (side, number) in [(Side::A, 1), (Side::B, 2)] {
            let bond = Bond::new(side, 0);
            let (own, partner) = (bond.netdev(), bond.partner());
            for (lines, netdev) in [(&mut ours, own.as_str()), (&mut theirs, partner)] {
                lines.push(format!(
                    "link add link {netdev} name {netdev}.{id} type vlan id {id}"
                ));
                lines.push(format!("link set dev {netdev}.{id} up"));
            }
            theirs.push(format!("link set dev {partner}.{id} master br{id}"));
            ours.push(format!("address add 10.{id}.0.{number}/24 dev {own}.{id}"));
            ours.push(format!(
                "address add fd00:{id}::{number}/64 dev {own}.{id} nodad"
            ));
        }
    }
    bonded.rails.router(Bond::new(Side::A, 0)).ip_batch(&theirs);
    bonded.rails.host.ip_batch(&ours);
}

/// A pod on these VLANs of its side's bond.
fn tenant(bonded: &Bonded, side: Side, name: &str, ids: &[u32]) -> BondedPod {
    let bond = Bond::new(side, 0).netdev();
    let netdevs = ids
        .iter()
        .map(|id| json!({ "netdev": format!("{bond}.{id}") }));
    let mut configuration = bonded.configuration(side);
    configuration["devices"] = netdevs.collect();
    bonded.pod(side, name, configuration)
}

/// Returns the name of `rail` in the pod: a single rail has the name that the runtime passes.
fn interface(pod: &BondedPod, rail: usize) -> String {
    let name = pod.rail(rail)["interface"].as_str();
    name.expect("a name").to_owned()
}

/// Runs `rping`, and `ib_write_bw` with the GIDs of the results, from the client's `rail` to the server's first
/// rail.
#[track_caller]
fn on_a_vlan(server: &BondedPod, client: &BondedPod, rail: usize) {
    let devices = [server, client].map(|pod| pod.bond(0).rdma());
    let addresses = [server.address(0, true), client.address(rail, true)];
    let ends = [
        End {
            pod: &server.netns,
            rdma: &devices[0],
            address: &addresses[0].0,
        },
        End {
            pod: &client.netns,
            rdma: &devices[1],
            address: &addresses[1].0,
        },
    ];
    traffic::rping(ends[0], ends[1]);
    Write::new(ends[0], ends[1], &server.address(0, false).0)
        .gids(addresses[0].1, addresses[1].1)
        .start()
        .bandwidth();
}

#[test]
fn two_tenants_have_a_vlan_each_of_one_bond() {
    let bonded = Bonded::new();
    make_vlans(&bonded);
    let host = &bonded.rails.host;
    let before = Snapshot::of(host);
    let gids = BONDS.map(|bond| bonded.gids(bond));
    let server = tenant(&bonded, Side::A, "a100", &[100]);
    let same = tenant(&bonded, Side::B, "b100", &[100]);
    let other = tenant(&bonded, Side::B, "b200", &[200]);
    let both = tenant(&bonded, Side::B, "b-both", &[200, 100]);
    for (pod, rail, netdev) in [
        (&server, 0, "bond0.100"),
        (&same, 0, "bond2.100"),
        (&both, 0, "bond2.200"),
        (&both, 1, "bond2.100"),
    ] {
        let reported = pod.rail(rail);
        assert_eq!(reported["netdev"], netdev);
        assert_eq!(reported["rdmaDevice"], pod.bond(0).rdma());
        let id = netdev.split_once('.').expect("a VLAN").1;
        let (address, _) = pod.address(rail, true);
        assert!(address.starts_with(&format!("fd00:{id}::")), "{address}");
    }
    // the packets have the VLAN tag: the router receives them on its VLAN netdev
    let router = bonded.rails.router(Bond::new(Side::A, 0));
    let sent = |id: u32| router.tx_bytes(&format!("to-a.{id}"));
    let tagged = [100, 200].map(sent);
    on_a_vlan(&server, &same, 0);
    on_a_vlan(&server, &both, 1);
    let tagged = [sent(100) - tagged[0], sent(200) - tagged[1]];
    assert!(tagged[0] >= 2 * 100 * 4096, "{tagged:?}");
    assert!(tagged[1] < 4096, "{tagged:?}");
    // both ends have a route and the same prefix, but another VLAN is another network
    let ways = [(&other, 100), (&server, 200)];
    for (pod, of) in ways {
        let name = interface(pod, 0);
        pod.netns
            .ip(&format!("route add fd00:{of}::/64 dev {name}"));
    }
    let reaches = |from: &BondedPod, rail: usize, seconds: &str| {
        let (to, _) = server.address(0, true);
        let (own, _) = from.address(rail, true);
        let mut ping = from.netns.command("ping");
        ping.args(["-c", "2", "-i", "0.2", "-W", seconds, "-I", &own, &to]);
        ping.output().expect("ping").status.success()
    };
    assert!(reaches(&same, 0, "20"));
    assert!(!reaches(&other, 0, "1"));
    for (pod, of) in ways {
        let name = interface(pod, 0);
        pod.netns
            .ip(&format!("route del fd00:{of}::/64 dev {name}"));
    }
    for pod in [&server, &same, &other, &both] {
        let checked = bonded.runtime().check(&pod.list, &pod.attachment);
        checked.unwrap_or_else(|outcome| panic!("{outcome}"));
    }
    // one child is removed with its namespace
    same.netns.die();
    for pod in [&server, &same, &other, &both] {
        bonded.delete(pod);
    }
    for side in [Side::A, Side::B] {
        nothing_is_left(&bonded, side);
    }
    gids_are(&bonded, gids);
    before.assert_restored(host);
}

/// An operator removes a VLAN while pods use it. The kernel removes the children with it, and DEL succeeds
/// nevertheless.
#[test]
fn a_vlan_can_be_removed_below_its_pods() {
    let bonded = Bonded::new();
    make_vlans(&bonded);
    let gids = BONDS.map(|bond| bonded.gids(bond));
    let pod = tenant(&bonded, Side::A, "pod", &[100]);
    let name = interface(&pod, 0);
    assert!(pod.netns.has_link(&name));
    bonded.rails.host.ip("link del bond0.100");
    assert!(!pod.netns.has_link(&name));
    let checked = bonded.runtime().check(&pod.list, &pod.attachment);
    assert!(checked.is_err());
    bonded.delete(&pod);
    nothing_is_left(&bonded, Side::A);
    let after = BONDS.map(|bond| bonded.gids(bond));
    assert!(after[0] < gids[0] && after[1..] == gids[1..], "{after:?}");
}
