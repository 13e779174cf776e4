// SPDX-License-Identifier: Apache-2.0
//! Parts of an ADD and a DEL: shares of their processor time by perf, and their instructions outside of the kernel by
//! callgrind. State and leases are in memory, and there is no probe.

use super::{
    moves,
    rails::{self, changed, kept_in},
    run::{OF, call, environment, runs},
};
use integration::{Netns, Node, plugin::rdma_cni};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const RUNS: usize = 30;
const COUNTS: [u32; 2] = [1, 8];
const VERBS: [&str; 2] = ["ADD", "DEL"];
/// Number of columns of a table: one for each verb with each number of rails.
const COLUMNS: usize = VERBS.len() * COUNTS.len();
/// Processor time between two samples, in nanoseconds.
const PERIOD: &str = "50000";

/// Part of a program in which a sample was taken.
#[derive(Clone, Copy)]
enum Part {
    Netlink,
    Own,
    Files,
    Memory,
    Entry,
    Sockets,
    Program,
}

/// Titles of the parts, in the order of [`Part`].
const PARTS: [&str; 7] = [
    "messages: netlink, and what is announced",
    "our own code",
    "files, and all other calls",
    "page faults, mapping and unmapping",
    "into the kernel and out of it, interrupts",
    "sockets and namespaces",
    "start and end of the program",
];

/// Number of samples of each part.
type Samples = [u32; PARTS.len()];

/// Measures in the host's namespace of `node`, which has `eth1`.
pub(super) fn measure(node: &Node) {
    let memory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let children = rails::inputs(node, COUNTS).map(|input| {
        let input = kept_in(&input, memory.path());
        let file = input.with_extension("profile.json");
        changed(&input, file, |it| it["probe"] = "off".into())
    });
    let moved = children.each_ref().map(|input| moves::moving(input));
    profile(node, "children", &children, memory.path());
    profile(node, "moves", &moved, memory.path());
    println!("\nAll figures include rdma-ipam, and none includes the kernel's own threads.");
}

fn profile(node: &Node, what: &str, inputs: &[PathBuf; COUNTS.len()], directory: &Path) {
    let mut samples = [Samples::default(); COLUMNS];
    let mut instructions = [0; COLUMNS];
    for round in 0..runs(RUNS) {
        for (index, input) in inputs.iter().enumerate() {
            let pod = Netns::new("profile");
            let at = (pod.path(), &*node.cni_path());
            // one call of each verb before the samples fills the caches
            if round == 0 {
                for verb in VERBS {
                    call(&rdma_cni(), verb, at, input);
                }
            }
            for (verb, name) in VERBS.iter().enumerate() {
                let column = verb * COUNTS.len() + index;
                sample(name, at, input, directory, &mut samples[column]);
            }
            if round == 0 {
                for (verb, name) in VERBS.iter().enumerate() {
                    instructions[verb * COUNTS.len() + index] =
                        instructions_of(name, at, input, directory);
                }
            }
        }
    }
    println!(
        "\n{what}: shares of the processor time of {} runs, in turn\n",
        runs(RUNS)
    );
    let head: String = VERBS
        .iter()
        .flat_map(|verb| COUNTS.map(|rails| format!(" {:>9}", format!("{verb} of {rails}"))))
        .collect();
    println!("{:<44}{head}", "");
    for (part, title) in PARTS.iter().enumerate() {
        let cells: String = samples
            .iter()
            .map(|it| {
                let all: u32 = it.iter().sum();
                format!(" {:>7.0} %", f64::from(it[part]) * 1e2 / f64::from(all))
            })
            .collect();
        println!("{title:<44}{cells}");
    }
    let cells: String = samples
        .iter()
        .map(|it| format!(" {:>9}", it.iter().sum::<u32>()))
        .collect();
    println!("{:<44}{cells}", "samples");
    let cells: String = instructions
        .iter()
        .map(|it| format!(" {:>9.2}", f64::from(*it) / 1e6))
        .collect();
    println!(
        "{:<44}{cells}",
        "million instructions outside of the kernel"
    );
}

/// Makes one call, and takes a sample every [`PERIOD`].
fn sample(command: &str, at: (&Path, &str), input: &Path, directory: &Path, samples: &mut Samples) {
    let file = directory.join("perf.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "--quiet", "--no-buildid-cache", "--call-graph"])
        .args(["fp", "--event", "cpu-clock", "--count", PERIOD, "--output"])
        .arg(&file)
        .arg("--")
        .arg(rdma_cni());
    finish(perf, command, at, input);
    let output = Command::new("perf")
        .args(["script", "--fields", "ip,sym", "--input"])
        .arg(&file)
        .stderr(Stdio::null())
        .output()
        .expect("perf");
    assert!(output.status.success(), "perf reads what it has written");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for stack in text.split("\n\n").filter(|it| !it.trim().is_empty()) {
        samples[part(stack) as usize] += 1;
    }
}

/// Returns the number of instructions that one call executes outside of the kernel.
fn instructions_of(command: &str, at: (&Path, &str), input: &Path, directory: &Path) -> u32 {
    let file = directory.join("callgrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(rdma_cni());
    finish(valgrind, command, at, input);
    let text = fs::read_to_string(&file).expect("what callgrind has counted");
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    total.and_then(|it| it.parse().ok()).expect("its total")
}

/// Runs `program`, which runs the plugin, and waits for its end.
fn finish(mut program: Command, command: &str, at: (&Path, &str), input: &Path) {
    let status = program
        .env_clear()
        .envs(environment(OF, command, at))
        .stdin(File::open(input).expect("the configuration"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("Debian's linux-perf and valgrind");
    assert!(status.success(), "{program:?} has failed");
}

/// Returns the part to which a sample belongs. The first line of `stack` is the innermost frame. The outermost system
/// call or page fault decides. Without one, a stack without symbols is the program's own code, and any other stack is
/// [`Part::Entry`].
fn part(stack: &str) -> Part {
    let names = || stack.lines().filter_map(|it| it.split_whitespace().nth(1));
    for name in names().rev() {
        let call = ["__x64_sys_", "__arm64_sys_"]
            .iter()
            .find_map(|it| name.strip_prefix(it));
        match (call, name) {
            (Some(call), _) => return part_of(call),
            // arch/x86/mm/fault.c, arch/arm64/kernel/entry-common.c
            (_, "exc_page_fault" | "el0_da" | "el0_ia") => return Part::Memory,
            _ => {}
        }
    }
    if names().all(|it| it == "[unknown]") {
        Part::Own
    } else {
        Part::Entry
    }
}

fn part_of(call: &str) -> Part {
    match call {
        "sendto" | "sendmsg" | "recvfrom" | "recvmsg" => Part::Netlink,
        "mmap" | "munmap" | "mremap" | "madvise" | "mprotect" | "brk" => Part::Memory,
        "socket" | "bind" | "connect" | "setsockopt" | "getsockopt" | "getsockname" | "setns" => {
            Part::Sockets
        }
        "execve" | "exit_group" | "arch_prctl" | "set_tid_address" => Part::Program,
        _ => Part::Files,
    }
}
