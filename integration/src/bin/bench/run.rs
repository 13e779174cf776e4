// SPDX-License-Identifier: Apache-2.0
//! Times of a process, and medians of several runs.

use nix::{
    libc,
    sys::time::{TimeVal, TimeValLike},
};
use std::{
    env,
    fs::File,
    io::Read,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Default container and interface of a call.
pub(super) const OF: (&str, &str) = ("bench", "net1");

/// Returns the number of runs: `usual`, or `RDMA_BENCH_RUNS` if this is smaller, but at least 1.
pub(super) fn runs(usual: usize) -> usize {
    let most = env::var("RDMA_BENCH_RUNS").ok();
    let most = most.map(|it| it.parse().expect("RDMA_BENCH_RUNS is a number"));
    usual.min(most.unwrap_or(usual)).max(1)
}

/// A finished process.
pub(super) struct Run {
    pub(super) wall: Duration,
    /// CPU time of the program and its children.
    pub(super) cpu: Duration,
}

/// Runs `program` with only the variables of `environment`. Returns its times and its output. Panics if the program
/// fails.
#[expect(
    clippy::zombie_processes,
    reason = "wait4 waits for the child, and returns its processor time"
)]
pub(super) fn run(program: &Path, environment: &[(&str, &str)], input: File) -> (Run, String) {
    let start = Instant::now();
    let mut child = Command::new(program)
        .env_clear()
        .envs(environment.iter().copied())
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the plugin starts");
    let pid = libc::pid_t::try_from(child.id()).expect("a process id");
    let mut output = String::new();
    let stdout = child.stdout.as_mut().expect("its standard output");
    stdout.read_to_string(&mut output).expect("UTF-8");
    let mut status = 0;
    // SAFETY: an all-zero rusage is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: only this function waits for the child; both pointers are valid.
    let ended = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    let wall = start.elapsed();
    assert_eq!(
        (ended, status),
        (pid, 0),
        "{} {environment:?} failed: {output}",
        program.display()
    );
    let run = Run {
        wall,
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
    };
    (run, output)
}

fn time(time: libc::timeval) -> Duration {
    let time = TimeVal::from(time);
    Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap_or_default())
}

/// Runs the CNI plugin `program` with the configuration in the file `input`. `at` is the path of the pod's namespace,
/// and `CNI_PATH`.
pub(super) fn call(
    program: &Path,
    command: &str,
    at: (&Path, &str),
    input: &Path,
) -> (Run, String) {
    call_for(OF, program, command, at, input)
}

/// Does the same as [`call`], for the container and interface `of`.
pub(super) fn call_for(
    of: (&str, &str),
    program: &Path,
    command: &str,
    at: (&Path, &str),
    input: &Path,
) -> (Run, String) {
    let input = File::open(input).expect("the configuration");
    run(program, &environment(of, command, at), input)
}

/// Returns the environment that a runtime sets.
pub(super) fn environment<'a>(
    (container, interface): (&'a str, &'a str),
    command: &'a str,
    (netns, cni_path): (&'a Path, &'a str),
) -> [(&'static str, &'a str); 5] {
    [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", container),
        ("CNI_NETNS", netns.to_str().expect("UTF-8")),
        ("CNI_IFNAME", interface),
        ("CNI_PATH", cni_path),
    ]
}

pub(super) fn row(name: &str, ours: f64, theirs: f64, digits: usize) {
    let ratio = if theirs == 0.0 {
        "-".into()
    } else {
        format!("{:.2}", ours / theirs)
    };
    println!("{name:<34} {ours:>12.digits$} {theirs:>12.digits$} {ratio:>8}");
}

/// Returns the median of the runs' durations, in ms.
pub(super) fn median(runs: &[Run]) -> f64 {
    median_of(runs.iter().map(|run| milliseconds(run.wall)))
}

/// Returns the median of the runs' processor time, in ms.
pub(super) fn cpu(runs: &[Run]) -> f64 {
    median_of(runs.iter().map(|run| milliseconds(run.cpu)))
}

pub(super) fn median_of(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
