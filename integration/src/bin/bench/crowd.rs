// SPDX-License-Identifier: Apache-2.0
//! Cost of many pods that start simultaneously and then end simultaneously: pods per second, duration of one pod's
//! call, and processor time including the IPAM plugin's.

use super::{
    figures, rails,
    run::{self, Run, milliseconds},
};
use integration::{Netns, Node, plugin::rdma_cni};
use std::{
    path::Path,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// Numbers of simultaneous pods, each with its number of repetitions. A small number of pods has more repetitions, so
/// each case has enough samples of one pod's duration.
const CROWDS: [(usize, usize); 3] = [(1, 16), (16, 4), (100, 2)];
const RAILS: [u32; 2] = [1, 8];
const VERBS: [&str; 2] = ["ADD", "DEL"];

/// Measures in the host's namespace of `node`, which has `eth1`. State and leases are in memory, so no figure
/// contains the disk's time.
pub(super) fn measure(node: &Node) {
    let memory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let inputs = rails::inputs(node, RAILS).map(|it| rails::kept_in(&it, memory.path()));
    println!(
        "\npods at once: macvlan children, each with an address from its parent's prefix; CPU of one pod; in turn\n"
    );
    println!(
        "{:<18} {:>10} {:>9} {:>12} {:>9} {:>9} {:>9}",
        "", "verb", "a second", "median, ms", "p99, ms", "CPU, ms", "rounds"
    );
    let of = |(pods, rounds)| {
        let each = RAILS.iter().zip(&inputs);
        each.map(move |(rails, input)| Size::new(pods, run::runs(rounds), *rails, input))
    };
    let mut sizes: Vec<Size> = CROWDS.into_iter().flat_map(of).collect();
    let most = sizes.iter().map(|it| it.rounds).max().unwrap_or_default();
    for round in 0..most {
        for size in sizes.iter_mut().filter(|it| round < it.rounds) {
            size.round(node);
        }
    }
    let rows: Vec<_> = sizes.iter().map(Size::report).collect();
    let head = [
        "ADD: a second",
        "ADD: median",
        "ADD: p99",
        "DEL: a second",
        "DEL: median",
        "DEL: p99",
    ];
    figures::keep("crowd", &head, &rows);
}

/// A case: a number of simultaneous pods, all with the same number of rails.
struct Size<'a> {
    pods: usize,
    rounds: usize,
    rails: u32,
    input: &'a Path,
    crowds: [Crowd; 2],
}

impl<'a> Size<'a> {
    fn new(pods: usize, rounds: usize, rails: u32, input: &'a Path) -> Self {
        let crowds = Default::default();
        Self {
            pods,
            rounds,
            rails,
            input,
            crowds,
        }
    }

    /// Calls ADD for all pods simultaneously, then DEL.
    fn round(&mut self, node: &Node) {
        let netns: Vec<Netns> = (0..self.pods).map(|_| Netns::new("crowd")).collect();
        for (verb, crowd) in VERBS.iter().zip(&mut self.crowds) {
            crowd.add(at_once(node, verb, &netns, self.input));
        }
    }

    /// Prints the lines for this size, and returns its row for the plots.
    fn report(&self) -> (String, Vec<f64>) {
        let rounds = self.rounds;
        let name = format!("{} of {} rails", self.pods, self.rails);
        let mut row = vec![];
        let [add, del] = [0, 1].map(|verb: usize| self.crowds[verb].figures());
        for (verb, [rate, median, p99, cpu]) in VERBS.iter().zip([add, del]) {
            row.extend([rate, median, p99]);
            println!(
                "{name:<18} {verb:>10} {rate:>9.1} {median:>12.1} {p99:>9.1} {cpu:>9.1} {rounds:>9}"
            );
        }
        let [rate, median, p99, cpu] = [0, 1, 2, 3].map(|figure: usize| del[figure] / add[figure]);
        println!(
            "{name:<18} {:>10} {rate:>9.2} {median:>12.2} {p99:>9.2} {cpu:>9.2}",
            "DEL to ADD"
        );
        (name, row)
    }
}

/// All runs of one verb, and the total duration of its rounds.
#[derive(Default)]
struct Crowd {
    runs: Vec<Run>,
    wall: Duration,
}

impl Crowd {
    fn add(&mut self, (runs, wall): (Vec<Run>, Duration)) {
        self.runs.extend(runs);
        self.wall += wall;
    }

    /// Returns four figures: pods per second, median and 99th percentile of a call's duration, and a call's mean
    /// processor time, in milliseconds.
    fn figures(&self) -> [f64; 4] {
        let mut walls: Vec<f64> = self.runs.iter().map(|run| milliseconds(run.wall)).collect();
        walls.sort_by(f64::total_cmp);
        let count = walls.len();
        let cpu: f64 = self.runs.iter().map(|run| milliseconds(run.cpu)).sum();
        // 99 of 100 pods need at most this time
        let p99 = walls[(count * 99).div_ceil(100) - 1];
        let number = count as f64;
        [
            number / self.wall.as_secs_f64(),
            walls[count / 2],
            p99,
            cpu / number,
        ]
    }
}

/// Calls `verb` for all `pods` simultaneously. Returns the runs, and the time until the last run has ended.
fn at_once(node: &Node, verb: &str, pods: &[Netns], input: &Path) -> (Vec<Run>, Duration) {
    let path = node.cni_path();
    let start = Barrier::new(pods.len() + 1);
    thread::scope(|scope| {
        let threads: Vec<_> = pods
            .iter()
            .enumerate()
            .map(|(number, pod)| {
                let (start, path) = (&start, &path);
                scope.spawn(move || {
                    let container = format!("pod{number}");
                    start.wait();
                    let of = (&*container, "net1");
                    run::call_for(of, &rdma_cni(), verb, (pod.path(), path), input).0
                })
            })
            .collect();
        start.wait();
        let begun = Instant::now();
        let runs = threads
            .into_iter()
            .map(|it| it.join().expect("no panic"))
            .collect();
        (runs, begun.elapsed())
    })
}
