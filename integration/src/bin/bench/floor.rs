// SPDX-License-Identifier: Apache-2.0
//! One rail's ADD compared with its lower limit: a static C program that sends the same requests to the kernel, and
//! does nothing else. The ADD has no probe, and its state and leases are in memory, so it waits neither for the disk
//! nor for the wire. Further rows show the same ADD with a disk or with a probe.

use super::{
    rails,
    run::{Run, call, cpu, median, median_of, run, runs},
    waits::{Waits, waits},
};
use integration::{Netns, Node, plugin::rdma_cni};
use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

const RUNS: usize = 31;
/// Number of runs under strace. They measure the ADD's waiting times.
const TRACED: usize = 5;

/// An ADD that is measured.
struct Case {
    title: &'static str,
    input: PathBuf,
    times: Vec<Run>,
    waits: Vec<Waits>,
}

/// Measures in the host's namespace of `node`, which has `eth1`.
pub(super) fn measure(node: &Node) {
    let memory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    // a file system whose files survive a boot
    let disk = tempfile::tempdir_in("/var/tmp").expect("a directory on a disk");
    let [input] = rails::inputs(node, [1]);
    let floor = build(memory.path());
    let mut cases = [
        ("in memory, no probe", memory.path(), "off"),
        ("on the disk, no probe", disk.path(), "off"),
        ("in memory, probed", memory.path(), "on"),
    ]
    .map(|(title, directory, probe)| Case {
        title,
        input: input_in(&input, directory, probe),
        times: vec![],
        waits: vec![],
    });
    let mut least = vec![];
    for round in 0..runs(RUNS) {
        let pod = Netns::new("floor");
        let environment = [
            ("POD", pod.path().to_str().expect("UTF-8")),
            ("PARENT", "eth1"),
            ("NAME", "net1"),
            ("ADDRESS", "2001:db8:1::ffff:1"),
        ];
        let nothing = File::open("/dev/null").expect("it is there");
        least.push(run(&floor, &environment, nothing).0);
        for case in &mut cases {
            let pod = Netns::new("floor");
            let at = (pod.path(), &*node.cni_path());
            case.times.push(call(&rdma_cni(), "ADD", at, &case.input).0);
            call(&rdma_cni(), "DEL", at, &case.input);
            if round < runs(TRACED) {
                case.waits.push(waits(&rdma_cni(), "ADD", at, &case.input));
                call(&rdma_cni(), "DEL", at, &case.input);
            }
        }
    }
    println!(
        "\none rail's ADD compared with its lower limit, medians of {} runs, in turn\n",
        runs(RUNS)
    );
    println!(
        "{:<22} {:>8} {:>9} {:>8} {:>9} {:>7} {:>14} {:>12} {:>13} {:>9} {:>9}",
        "",
        "ms",
        "to floor",
        "CPU, ms",
        "to floor",
        "fsyncs",
        "they wait, ms",
        "answers, ms",
        "closing, ms",
        "rest, ms",
        "to floor"
    );
    let [wall, used] = [median(&least), cpu(&least)];
    println!("{:<22} {wall:>8.2} {:>9} {used:>8.2}", "floor", "");
    for case in &cases {
        let syncs = case.waits[0].syncs;
        let waited = |of: fn(&Waits) -> f64| median_of(case.waits.iter().map(of));
        let [synced, polled, closed] = [
            waited(|it| it.synced),
            waited(|it| it.polled),
            waited(|it| it.closed),
        ];
        let [ours, cpu] = [median(&case.times), cpu(&case.times)];
        let rest = ours - synced - polled - closed;
        println!(
            "{:<22} {ours:>8.2} {:>9.2} {cpu:>8.2} {:>9.2} {syncs:>7} {synced:>14.2} {polled:>12.2} {closed:>13.2} {rest:>9.2} {:>9.2}",
            case.title,
            ours / wall,
            cpu / used,
            rest / wall
        );
    }
    println!(
        "\nThe figures of rdma-cni include rdma-ipam. Waiting times are medians of {} runs under strace.",
        runs(TRACED)
    );
}

/// Copies the configuration file `input`, with state and leases in `directory` and the setting `probe`. Returns the
/// copy's path.
fn input_in(input: &Path, directory: &Path, probe: &str) -> PathBuf {
    let kept = rails::kept_in(input, directory);
    let file = directory.join(format!("probe-{probe}.json"));
    rails::changed(&kept, file, |it| it["probe"] = probe.into())
}

/// Builds the C program statically with musl, like rdma-cni. glibc executes `cpuid` 43 times before `main`. On a
/// virtual machine the hypervisor handles each `cpuid`, which took a quarter of the lower limit.
fn build(directory: &Path) -> PathBuf {
    let program = directory.join("floor");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin/bench/floor.c");
    // the directory of glibc's headers also has the kernel's headers
    let headers = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let built = Command::new("musl-gcc")
        .args(["-static", "-O2", "-Wall", "-idirafter", "/usr/include"])
        .args(["-idirafter", &headers, "-o"])
        .arg(&program)
        .arg(source)
        .status();
    assert!(built.expect("musl-gcc").success(), "the floor is not built");
    program
}
