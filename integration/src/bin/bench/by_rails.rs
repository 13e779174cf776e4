// SPDX-License-Identifier: Apache-2.0
//! Compares ADD and DEL of pods with different numbers of rails. The peers (Debian's plugins) run once for each rail.

use super::{
    figures,
    peers::{Cost, Peers},
    run::{Run, call, cpu, median, median_of, runs},
};
use integration::{Netns, plugin::rdma_cni};
use std::path::PathBuf;

/// Number of runs. Slow peers run less often.
pub(super) const RUNS: usize = 15;
const VERBS: [&str; 2] = ["ADD", "DEL"];

/// A comparison by numbers of rails.
pub(super) struct ByRails<'a> {
    /// Subject of the comparison, which the heading prints.
    pub(super) what: &'a str,
    /// Numbers of rails with their configuration files. Ratios refer to the first number.
    pub(super) inputs: Vec<(u32, PathBuf)>,
    pub(super) runs: usize,
    pub(super) cni_path: &'a str,
    pub(super) peers: Option<Peers<'a>>,
}

/// Times of ADD and DEL for one number of rails.
#[derive(Default)]
struct Times {
    ours: [Vec<Run>; 2],
    theirs: [Vec<Cost>; 2],
}

impl ByRails<'_> {
    /// Measures ADD and DEL for each number of rails. Prints the times, and writes them as `table` for the plots.
    pub(super) fn measure(&self, table: &str) {
        let mut times: Vec<Times> = self.inputs.iter().map(|_| Times::default()).collect();
        for round in 0..self.runs {
            for ((rails, input), times) in self.inputs.iter().zip(&mut times) {
                let pod = Netns::new("bench");
                let at = (pod.path(), self.cni_path);
                let (added, output) = call(&rdma_cni(), "ADD", at, input);
                let given = output.matches("\"sandbox\"").count();
                assert_eq!(given, *rails as usize, "{output}");
                times.ours[0].push(added);
                times.ours[1].push(call(&rdma_cni(), "DEL", at, input).0);
            }
            let peers = self.peers.iter();
            for peers in peers.filter(|it| round % self.runs.div_ceil(runs(it.runs)) == 0) {
                for ((rails, _), times) in self.inputs.iter().zip(&mut times) {
                    let costs = peers.round(*rails);
                    for (all, cost) in times.theirs.iter_mut().zip(costs) {
                        all.push(cost);
                    }
                }
            }
        }
        self.print_times(table, &times);
        println!("\nAll figures include rdma-ipam, and none includes the disk's journal.");
    }

    fn print_times(&self, table: &str, times: &[Times]) {
        println!("\n{}: medians of {} runs, in turn", self.what, self.runs);
        if let Some(Peers { title, .. }) = &self.peers {
            let runs = times[0].theirs[0].len();
            println!("the peers ({title}) run for each rail: medians of {runs} of these runs");
        }
        println!(
            "\n{:<14} {:>6} {:>8} {:>8} {:>10} {:>6} {:>8} {:>8} {:>10}",
            "", "to 1", "ms", "to peers", "theirs, ms", "to 1", "CPU, ms", "to peers", "theirs, ms"
        );
        let mut rows = vec![vec![]; times.len()];
        for (verb, name) in VERBS.iter().enumerate() {
            let of = |times: &Times| [median(&times.ours[verb]), cpu(&times.ours[verb])];
            let one = of(&times[0]);
            for ((index, times), (rails, _)) in times.iter().enumerate().zip(&self.inputs) {
                let ours = of(times);
                let peers = &times.theirs[verb];
                let theirs = [|it: &Cost| it.wall, |it: &Cost| it.cpu]
                    .map(|of| (!peers.is_empty()).then(|| median_of(peers.iter().map(of))));
                let mut line = format!("{:<14}", format!("{name} of {rails}"));
                for ((ours, one), theirs) in ours.iter().zip(one).zip(theirs) {
                    let [theirs, ratio] = match theirs {
                        Some(theirs) => [format!("{theirs:.1}"), format!("{:.3}", ours / theirs)],
                        None => ["-".into(), "-".into()],
                    };
                    let to_one = ours / one;
                    line += &format!(" {to_one:>6.2} {ours:>8.1} {ratio:>8} {theirs:>10}");
                }
                println!("{line}");
                rows[index].push(ours[0]);
                rows[index].extend(theirs[0]);
            }
        }
        let names = self.inputs.iter().map(|(rails, _)| rails.to_string());
        let rows: Vec<_> = names.zip(rows).collect();
        let head: &[&str] = match self.peers {
            Some(_) => &["ADD", "ADD of the peers", "DEL", "DEL of the peers"],
            None => &VERBS,
        };
        figures::keep(table, head, &rows);
    }
}
