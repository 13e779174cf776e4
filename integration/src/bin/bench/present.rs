// SPDX-License-Identifier: Apache-2.0
//! Influence of a node's existing attachments on the cost of the next one: ADD and DEL of 8 rails, with 0, 300 and
//! 3,000 existing attachments.

use super::{
    figures, rails,
    run::{Run, call, cpu, median, runs},
};
use integration::{Netns, Node, plugin::rdma_cni};
use rdma_netns::{Kernel, Linux};
use serde_json::{Value, json};
use std::{fs, path::Path};

const RUNS: usize = 15;
const RAILS: u32 = 8;
const PRESENT: [usize; 3] = [0, 300, 3000];
/// Number of pods with the existing attachments. Each pod has the same number of attachments.
const PODS: usize = 300;

/// Measures in the host's namespace of `node`, which has `eth1`.
pub(super) fn measure(node: &Node) {
    let [input] = rails::inputs(node, [RAILS]);
    let pods: Vec<Netns> = (0..PODS).map(|_| Netns::new("present")).collect();
    let inputs = PRESENT.map(|present| {
        let state = node.directory().join(format!("state-{present}"));
        let file = state.with_extension("json");
        let input = rails::changed(&input, file, |it| it["stateDir"] = json!(state));
        fill(node, &input, &state, &pods, present);
        input
    });
    let mut times: [[Vec<Run>; 2]; PRESENT.len()] = Default::default();
    for _ in 0..runs(RUNS) {
        for (input, [add, del]) in inputs.iter().zip(&mut times) {
            let pod = Netns::new("bench");
            let at = (pod.path(), &*node.cni_path());
            let run = |command| call(&rdma_cni(), command, at, input).0;
            add.push(run("ADD"));
            del.push(run("DEL"));
        }
    }
    println!(
        "\nattachments of {RAILS} rails that are there already, medians of {} runs, in turn\n",
        runs(RUNS)
    );
    println!(
        "{:<10} {:>9} {:>6} {:>11} {:>6} {:>13} {:>9} {:>6} {:>11} {:>6}",
        "",
        "ADD, ms",
        "to 0",
        "CPU, ms",
        "to 0",
        "for each, µs",
        "DEL, ms",
        "to 0",
        "CPU, ms",
        "to 0"
    );
    let figures_of = |[add, del]: &[Vec<Run>; 2]| [median(add), cpu(add), median(del), cpu(del)];
    let none = figures_of(&times[0]);
    let mut rows = vec![];
    for (present, times) in PRESENT.iter().zip(&times) {
        let row = figures_of(times);
        let ratio = |index: usize| row[index] / none[index];
        // additional processor time per attachment, because ADD reads the records
        let for_each = match present {
            0 => "-".to_owned(),
            _ => format!("{:.0}", (row[1] - none[1]) * 1e3 / *present as f64),
        };
        println!(
            "{present:<10} {:>9.1} {:>6.2} {:>11.1} {:>6.2} {for_each:>13} {:>9.1} {:>6.2} {:>11.1} {:>6.2}",
            row[0],
            ratio(0),
            row[1],
            ratio(1),
            row[2],
            ratio(2),
            row[3],
            ratio(3)
        );
        rows.push((present.to_string(), row.to_vec()));
    }
    figures::keep(
        "present",
        &["ADD", "CPU of ADD", "DEL", "CPU of DEL"],
        &rows,
    );
}

/// Writes records of `attachments` attachments of running pods below `state`. They are copies of a real record with
/// other container ids and namespaces.
fn fill(node: &Node, input: &Path, state: &Path, pods: &[Netns], attachments: usize) {
    let pod = Netns::new("first");
    let at = (pod.path(), &*node.cni_path());
    call(&rdma_cni(), "ADD", at, input);
    let directory = state.join("attachments/bench");
    let text = fs::read(directory.join("bench@net1.json")).expect("its record");
    call(&rdma_cni(), "DEL", at, input);
    let mut record: Value = serde_json::from_slice(&text).expect("JSON");
    let paths: Vec<&Path> = pods.iter().map(Netns::path).collect();
    let ids = Linux::new().netns_ids(&paths);
    let lived_in: Vec<Value> = paths
        .iter()
        .zip(ids)
        .map(|(path, id)| json!([path, id.expect("a namespace")]))
        .collect();
    for (number, pod) in (0..attachments).zip(lived_in.iter().cycle()) {
        let container = format!("other{number}");
        let file = directory.join(format!("{container}@net1.json"));
        record["key"]["container"] = container.into();
        (record["netns"], record["netnsId"]) = (pod[0].clone(), pod[1].clone());
        let text = serde_json::to_vec_pretty(&record).expect("JSON");
        fs::write(file, text).expect("a record");
    }
}
