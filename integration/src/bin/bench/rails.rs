// SPDX-License-Identifier: Apache-2.0
//! What more rails cost: ADD and DEL of a pod with children of 1, 4 and 8 netdevs, in turn.

use super::run::{Run, call, median};
use integration::{Netns, Node, plugin::rdma_cni};
use serde_json::{Value, json};
use std::{fs, path::PathBuf};

const RUNS: usize = 15;
const COUNTS: [u32; 3] = [1, 4, 8];

/// In the namespace of `node`'s host, which has `eth1`.
pub(super) fn measure(node: &Node) {
    let inputs = inputs(node, COUNTS);
    let mut times: [[Vec<Run>; 2]; COUNTS.len()] = Default::default();
    for _ in 0..RUNS {
        for (input, [add, del]) in inputs.iter().zip(&mut times) {
            let pod = Netns::new("bench");
            let at = (pod.path(), &*node.cni_path());
            let run = |command| call(&rdma_cni(), command, at, input).0;
            add.push(run("ADD"));
            del.push(run("DEL"));
        }
    }
    println!(
        "medians of {RUNS} runs, in turn: macvlan children, each with an address from its parent's prefix\n"
    );
    println!("{:<34} {:>12} {:>8}", "", "rdma-cni", "to 1");
    for (verb, name) in ["ADD", "DEL"].iter().enumerate() {
        let one = median(&times[0][verb]);
        for (rails, times) in COUNTS.iter().zip(&times) {
            let this = median(&times[verb]);
            let name = format!("{name} of {rails}, ms");
            println!("{name:<34} {this:>12.1} {:>8.2}", this / one);
        }
    }
}

/// The configurations of pods with so many rails each, and the rails with their prefixes, as far as `node` lacks them.
pub(super) fn inputs<const N: usize>(node: &Node, counts: [u32; N]) -> [PathBuf; N] {
    let most = counts.into_iter().max().unwrap_or_default();
    for rail in 1..=most {
        let name = format!("eth{rail}");
        if !node.host.has_link(&name) {
            node.add_rail(&name);
        }
        node.host.ip(&format!(
            "address replace 2001:db8:{rail}::1/64 dev {name} nodad"
        ));
    }
    counts.map(|rails| input(node, rails))
}

/// The configuration of a pod with so many rails, in a file.
fn input(node: &Node, rails: u32) -> PathBuf {
    let devices = (1..=rails).map(|rail| json!({"netdev": format!("eth{rail}")}));
    let configuration = json!({
        "cniVersion": "1.0.0",
        "name": "bench",
        "type": "rdma-cni",
        "devices": devices.collect::<Vec<Value>>(),
        "requireRdma": false,
        "mode": "share",
        "ipam": {"type": "rdma-ipam", "from": "parent", "dataDir": node.directory().join("leases")},
        "stateDir": node.state(),
    });
    let file = node.directory().join(format!("{rails}-rails.json"));
    fs::write(&file, configuration.to_string()).expect("the configuration");
    file
}
