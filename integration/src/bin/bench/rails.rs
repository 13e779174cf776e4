// SPDX-License-Identifier: Apache-2.0
//! What more rails cost: ADD and DEL of a pod with children of 1, 4 and 8 netdevs, in turn, beside Debian's plugins for
//! the same job: `macvlan` with `host-local` and `sbr`, once for each rail, as a runtime with several networks calls
//! them.

use super::{
    figures,
    run::{Run, call, call_for, cpu, median, median_of, milliseconds, number, system_calls},
};
use integration::{
    Netns, Node,
    plugin::{debian, rdma_cni},
};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
};

const RUNS: usize = 15;
/// Of the peers, which take seconds.
const PEER_RUNS: usize = 3;
const COUNTS: [u32; 3] = [1, 4, 8];

/// In the namespace of `node`'s host, which has `eth1`.
pub(super) fn measure(node: &Node) {
    let inputs = inputs(node, COUNTS);
    let mut times: [[Vec<Run>; 2]; COUNTS.len()] = Default::default();
    let mut theirs: [[Vec<f64>; 2]; COUNTS.len()] = Default::default();
    for round in 0..RUNS {
        for (rails, (input, [add, del])) in COUNTS.iter().zip(inputs.iter().zip(&mut times)) {
            let pod = Netns::new("bench");
            let at = (pod.path(), &*node.cni_path());
            let run = |command| call(&rdma_cni(), command, at, input);
            let (added, said) = run("ADD");
            assert_eq!(
                said.matches("\"sandbox\"").count(),
                *rails as usize,
                "{said}"
            );
            add.push(added);
            del.push(run("DEL").0);
        }
        if round < PEER_RUNS {
            for (rails, [add, del]) in COUNTS.iter().zip(&mut theirs) {
                let pod = Netns::new("bench");
                let peers = Peers { node, pod: &pod };
                let (took, said): (Vec<f64>, Vec<Value>) =
                    (1..=*rails).map(|rail| peers.add(rail)).unzip();
                add.push(took.iter().sum());
                let ended = (1..=*rails).zip(&said);
                del.push(ended.map(|(rail, said)| peers.del(rail, said)).sum());
            }
        }
    }
    println!(
        "medians of {RUNS} runs, and of {PEER_RUNS} of the peers, in turn: macvlan children, each with an address from \
         its parent's prefix\n"
    );
    println!(
        "{:<24} {:>10} {:>8} {:>22} {:>8}",
        "", "rdma-cni", "to 1", "macvlan+host-local+sbr", "ratio"
    );
    let mut rows = vec![vec![]; COUNTS.len()];
    for (verb, name) in ["ADD", "DEL"].iter().enumerate() {
        let one = median(&times[0][verb]);
        for (index, rails) in COUNTS.iter().enumerate() {
            let ours = median(&times[index][verb]);
            let theirs = median_of(theirs[index][verb].iter().copied());
            println!(
                "{:<24} {ours:>10.1} {:>8.2} {theirs:>22.1} {:>8.3}",
                format!("{name} of {rails}, ms"),
                ours / one,
                ours / theirs
            );
            rows[index].extend([ours, theirs]);
        }
    }
    let rows: Vec<_> = COUNTS.iter().map(u32::to_string).zip(rows).collect();
    let head = ["ADD", "ADD of the peers", "DEL", "DEL of the peers"];
    figures::keep("rails", &head, &rows);
    tell_counts(node, &inputs, &times);
}

/// What an ADD and a DEL consist of, in numbers: medians, and system calls of one run.
fn tell_counts(node: &Node, inputs: &[PathBuf], times: &[[Vec<Run>; 2]]) {
    println!(
        "\n{:<24} {:>10} {:>18} {:>14} {:>14}",
        "", "CPU, ms", "context switches", "system calls", "KiB written"
    );
    for (rails, (input, times)) in COUNTS.iter().zip(inputs.iter().zip(times)) {
        let pod = Netns::new("bench");
        let at = (pod.path(), &*node.cni_path());
        for (verb, runs) in ["ADD", "DEL"].iter().zip(times) {
            println!(
                "{:<24} {:>10.1} {:>18.0} {:>14} {:>14.0}",
                format!("{verb} of {rails}"),
                cpu(runs),
                median_of(runs.iter().map(|it| number(it.context_switches))),
                system_calls(&rdma_cni(), verb, at, input),
                median_of(runs.iter().map(|it| number(it.written_kib))),
            );
        }
    }
    println!("\nrdma-ipam is in all of them, and the disk's own journal is in none.");
}

/// Debian's plugins, for one pod.
struct Peers<'a> {
    node: &'a Node,
    pod: &'a Netns,
}

impl Peers<'_> {
    /// How long it took, ms, and the result.
    fn add(&self, rail: u32) -> (f64, Value) {
        let (took, said) = self.call("macvlan", "ADD", rail, None);
        let added: Value = serde_json::from_str(&said).expect("a result");
        let (routed, said) = self.call("sbr", "ADD", rail, Some(&added));
        let result = serde_json::from_str(&said).expect("a result");
        (took + routed, result)
    }

    fn del(&self, rail: u32, result: &Value) -> f64 {
        let (routed, _) = self.call("sbr", "DEL", rail, Some(result));
        let (took, _) = self.call("macvlan", "DEL", rail, Some(result));
        routed + took
    }

    fn call(&self, plugin: &str, verb: &str, rail: u32, result: Option<&Value>) -> (f64, String) {
        let directory = self.node.directory();
        let mut configuration = json!({
            "cniVersion": "1.0.0", "name": format!("peer{rail}"), "type": plugin,
            "master": format!("eth{rail}"), "mode": "bridge",
            "ipam": {
                "type": "host-local", "dataDir": directory.join("peers"),
                "ranges": [[{"subnet": format!("2001:db8:{rail}::/64")}]],
            },
        });
        if let Some(result) = result {
            configuration["prevResult"] = result.clone();
        }
        let input = directory.join("peer.json");
        fs::write(&input, configuration.to_string()).expect("the configuration");
        let interface = format!("net{rail}");
        let at = (self.pod.path(), &*self.node.cni_path());
        let (run, said) = call_for(("bench", &interface), &debian(plugin), verb, at, &input);
        (milliseconds(run.wall), said)
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

/// The configuration in the file `input`, changed, in `file`.
pub(super) fn changed(input: &Path, file: PathBuf, change: impl FnOnce(&mut Value)) -> PathBuf {
    let text = fs::read(input).expect("the configuration");
    let mut configuration = serde_json::from_slice(&text).expect("JSON");
    change(&mut configuration);
    fs::write(&file, configuration.to_string()).expect("the configuration");
    file
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
