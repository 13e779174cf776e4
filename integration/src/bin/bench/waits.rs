// SPDX-License-Identifier: Apache-2.0
//! Waiting times of one call of a plugin. strace measures them, and also follows child processes.

use super::run::{OF, environment};
use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
};

/// Waiting times of one call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waits {
    pub(super) syncs: u32,
    /// Time in fsync() and fdatasync(), whose calls `syncs` counts, in milliseconds.
    pub(super) synced: f64,
    /// Time in poll(), which waits for answers on the wire, in milliseconds.
    pub(super) polled: f64,
    /// Time in close(), in milliseconds.
    pub(super) closed: f64,
    closes: u32,
    /// Number of calls of getpid(), which waits for nothing. The time in them, `idled`, is strace's own overhead.
    idle: u32,
    idled: f64,
}

/// Runs the CNI plugin `program` under strace, otherwise like [`super::run::call`]. strace stops the plugin at few
/// calls only, so the plugin waits nearly as long as without strace. The times `synced` and `closed` exclude strace's
/// overhead, which is derived from calls that wait for nothing.
pub(super) fn waits(program: &Path, command: &str, at: (&Path, &str), input: &Path) -> Waits {
    let waits = traced(program, command, at, input);
    assert!(
        waits.idle > 0,
        "each line of the log has the process' number"
    );
    let strace = waits.idled / f64::from(waits.idle);
    let without = |waited: f64, calls: u32| (waited - strace * f64::from(calls)).max(0.0);
    Waits {
        synced: without(waits.synced, waits.syncs),
        closed: without(waits.closed, waits.closes),
        ..waits
    }
}

fn traced(program: &Path, command: &str, at: (&Path, &str), input: &Path) -> Waits {
    let directory = tempfile::tempdir().expect("a directory");
    // `-ff`: one file for each thread, so no other thread's call interrupts a line
    let status = Command::new("strace")
        .args(["-ff", "-T", "-s", "0", "--seccomp-bpf"])
        .args(["-e", "trace=fsync,fdatasync,poll,close,getpid"])
        .arg("-o")
        .arg(directory.path().join("thread"))
        .arg(program)
        .env_clear()
        .envs(environment(OF, command, at))
        .stdin(File::open(input).expect("the configuration"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(status.expect("strace").success(), "{command} under strace");
    let mut waits = Waits::default();
    for file in fs::read_dir(directory.path()).expect("strace's files") {
        let text = fs::read_to_string(file.expect("a file").path()).expect("what strace has seen");
        text.lines().for_each(|line| waits.add(line));
    }
    waits
}

impl Waits {
    /// Adds a line of strace, such as `fsync(3) = 0 <0.000012>`.
    fn add(&mut self, line: &str) {
        let Some((name, _)) = line.split_once('(') else {
            return;
        };
        let took = line.rsplit_once(" <").unwrap_or_default().1;
        let took = took.trim_end_matches('>').parse::<f64>();
        let took = took.unwrap_or_default() * 1e3;
        match name {
            "fsync" | "fdatasync" => {
                self.syncs += 1;
                self.synced += took;
            }
            "poll" => self.polled += took,
            "close" => {
                self.closes += 1;
                self.closed += took;
            }
            "getpid" => {
                self.idle += 1;
                self.idled += took;
            }
            _ => {}
        }
    }
}
