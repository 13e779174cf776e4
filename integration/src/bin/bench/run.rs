// SPDX-License-Identifier: Apache-2.0
//! One process, timed; medians, and rows of a table.

use nix::{
    libc,
    sys::time::{TimeVal, TimeValLike},
};
use std::{
    fs::{self, File},
    io::Read,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// One finished process.
pub(super) struct Run {
    pub(super) wall: Duration,
    /// Its own, and that of the programs that it has run.
    pub(super) cpu: Duration,
    pub(super) peak_kib: i64,
}

/// `program` with this environment and nothing else; it has to succeed. What it said.
#[expect(
    clippy::zombie_processes,
    reason = "wait4 waits, and tells the peak RSS"
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
    let mut said = String::new();
    let stdout = child.stdout.as_mut().expect("its standard output");
    stdout.read_to_string(&mut said).expect("UTF-8");
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid one.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the child is ours and not waited for elsewhere; both pointers are valid.
    let ended = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    let wall = start.elapsed();
    assert_eq!(
        (ended, status),
        (pid, 0),
        "{} {environment:?} failed: {said}",
        program.display()
    );
    let run = Run {
        wall,
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        peak_kib: usage.ru_maxrss,
    };
    (run, said)
}

fn time(time: libc::timeval) -> Duration {
    let time = TimeVal::from(time);
    Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap_or_default())
}

/// The CNI plugin `program`, with its configuration in the file `input`, for a pod with the namespace `netns`.
pub(super) fn call(
    program: &Path,
    command: &str,
    at: (&Path, &str),
    input: &Path,
) -> (Run, String) {
    call_for("bench", program, command, at, input)
}

/// As [`call`], for the container `container`.
pub(super) fn call_for(
    container: &str,
    program: &Path,
    command: &str,
    (netns, cni_path): (&Path, &str),
    input: &Path,
) -> (Run, String) {
    let netns = netns.to_str().expect("UTF-8");
    let environment = [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", container),
        ("CNI_NETNS", netns),
        ("CNI_IFNAME", "net1"),
        ("CNI_PATH", cni_path),
    ];
    let input = File::open(input).expect("the configuration");
    run(program, &environment, input)
}

pub(super) fn row(name: &str, ours: f64, theirs: f64, digits: usize) {
    let ratio = if theirs == 0.0 {
        "-".into()
    } else {
        format!("{:.2}", ours / theirs)
    };
    println!("{name:<34} {ours:>12.digits$} {theirs:>12.digits$} {ratio:>8}");
}

pub(super) fn median(runs: &[Run]) -> f64 {
    let mut walls: Vec<f64> = runs
        .iter()
        .map(|run| run.wall.as_secs_f64() * 1e3)
        .collect();
    walls.sort_by(f64::total_cmp);
    walls[walls.len() / 2]
}

/// Of the process and nothing else: a child's own children count for it only when waited
/// for by it, so the IPAM plugin is in neither.
pub(super) fn rss(runs: &[Run]) -> f64 {
    let peak = runs
        .iter()
        .map(|run| run.peak_kib)
        .max()
        .unwrap_or_default();
    f64::from(i32::try_from(peak).unwrap_or(i32::MAX)) / 1024.0
}

pub(super) fn size(program: &Path) -> f64 {
    let length = fs::metadata(program).expect("the program is there").len();
    f64::from(u32::try_from(length).unwrap_or(u32::MAX)) / 1e6
}
