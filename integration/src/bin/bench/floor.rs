// SPDX-License-Identifier: Apache-2.0
//! One rail's ADD beside its floor: a static C program that makes the same requests of the kernel, and nothing else.
//! State and leases are in memory and nothing is probed, so that neither the disk nor the wire is waited for.

use super::{
    rails,
    run::{Run, call, cpu, median, run},
};
use integration::{Netns, Node, plugin::rdma_cni};
use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

const RUNS: usize = 31;

/// In the namespace of `node`'s host, which has `eth1`.
pub(super) fn measure(node: &Node) {
    let memory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let [input] = rails::inputs(node, [1]);
    let input = in_memory(&input, memory.path());
    let floor = build(memory.path());
    let mut times: [Vec<Run>; 2] = Default::default();
    for _ in 0..RUNS {
        let pod = Netns::new("floor");
        let environment = [
            ("POD", pod.path().to_str().expect("UTF-8")),
            ("PARENT", "eth1"),
            ("NAME", "net1"),
            ("ADDRESS", "2001:db8:1::ffff:1"),
        ];
        let nothing = File::open("/dev/null").expect("it is there");
        times[0].push(run(&floor, &environment, nothing).0);
        let pod = Netns::new("floor");
        let at = (pod.path(), &*node.cni_path());
        times[1].push(call(&rdma_cni(), "ADD", at, &input).0);
        call(&rdma_cni(), "DEL", at, &input);
    }
    println!("\none rail's ADD beside its floor, medians of {RUNS} runs, in turn\n");
    println!(
        "{:<34} {:>12} {:>12} {:>8}",
        "", "rdma-cni", "floor", "ratio"
    );
    for (name, of) in [("wall, ms", median as fn(&[Run]) -> f64), ("CPU, ms", cpu)] {
        let [floor, ours] = [of(&times[0]), of(&times[1])];
        println!(
            "{name:<34} {ours:>12.2} {floor:>12.2} {:>8.2}",
            ours / floor
        );
    }
    println!("\nrdma-ipam is in the figures of rdma-cni.");
}

/// The configuration in the file `input`, with all files in `memory` and without a probe.
fn in_memory(input: &Path, memory: &Path) -> PathBuf {
    rails::changed(input, memory.join("one-rail.json"), |configuration| {
        configuration["probe"] = "off".into();
        configuration["stateDir"] = memory.join("state").to_str().into();
        configuration["ipam"]["dataDir"] = memory.join("leases").to_str().into();
    })
}

/// The C program, static.
fn build(directory: &Path) -> PathBuf {
    let program = directory.join("floor");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin/bench/floor.c");
    let built = Command::new("gcc")
        .args(["-static", "-O2", "-Wall", "-o"])
        .arg(&program)
        .arg(source)
        .status();
    assert!(built.expect("gcc").success(), "the floor is not built");
    program
}
