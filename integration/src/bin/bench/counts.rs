// SPDX-License-Identifier: Apache-2.0
//! What one call of a plugin does, in numbers: by strace, which follows all that the plugin starts.

use super::run::{OF, environment};
use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
};

/// Of one call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) system_calls: u32,
    /// Bytes.
    pub(super) sent_to_netlink: u32,
    /// Bytes; what is only looked at, to make room for it, counts once.
    pub(super) read_from_netlink: u32,
    /// Bytes, to files that are not the kernel's own.
    pub(super) written: u32,
    pub(super) syncs: u32,
    /// What those have waited: milliseconds.
    pub(super) synced: f64,
    /// What it has waited for answers on the wire: milliseconds.
    pub(super) polled: f64,
    /// What descriptors have waited that were closed: milliseconds.
    pub(super) closed: f64,
    closes: u32,
    /// Calls that wait for nothing, and what strace says they took: that is its own.
    idle: u32,
    idled: f64,
}

/// The CNI plugin `program`, as [`super::run::call`] calls it.
pub(super) fn counts(program: &Path, command: &str, at: (&Path, &str), input: &Path) -> Counts {
    traced(&["-yy"], program, command, at, input)
}

/// The same of what waits alone: it stops at little else, so that waits as it does without strace, whose own time, that of
/// calls that wait for nothing, is in none of it.
pub(super) fn waits(program: &Path, command: &str, at: (&Path, &str), input: &Path) -> Counts {
    let only = [
        "--seccomp-bpf",
        "-e",
        "trace=fsync,fdatasync,poll,close,getpid",
    ];
    let counts = traced(&only, program, command, at, input);
    assert!(
        counts.idle > 0,
        "each line of the log has the process' number"
    );
    let strace = counts.idled / f64::from(counts.idle);
    let without = |waited: f64, calls: u32| (waited - strace * f64::from(calls)).max(0.0);
    Counts {
        synced: without(counts.synced, counts.syncs),
        closed: without(counts.closed, counts.closes),
        ..counts
    }
}

fn traced(
    options: &[&str],
    program: &Path,
    command: &str,
    at: (&Path, &str),
    input: &Path,
) -> Counts {
    let directory = tempfile::tempdir().expect("a directory");
    // a file for each thread: no call of one is in the midst of another's
    let status = Command::new("strace")
        .args(["-ff", "-T", "-s", "0"])
        .args(options)
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
    let mut counts = Counts::default();
    for file in fs::read_dir(directory.path()).expect("strace's files") {
        let text = fs::read_to_string(file.expect("a file").path()).expect("what strace has seen");
        text.lines().for_each(|line| counts.add(line));
    }
    counts
}

impl Counts {
    /// A line of strace: `write(3</run/x>, ""..., 145) = 145 <0.000012>`.
    fn add(&mut self, line: &str) {
        // a signal, or the end
        if line.starts_with(['+', '-']) {
            return;
        }
        self.system_calls += 1;
        let Some((name, rest)) = line.split_once('(') else {
            return;
        };
        let (arguments, result) = rest.rsplit_once(" = ").unwrap_or((rest, ""));
        let mut result = result.split_whitespace();
        // none of a call that failed
        let bytes: u32 = result.next().map_or(0, |it| it.parse().unwrap_or(0));
        let took = result.next_back().unwrap_or_default();
        let took = took.trim_matches(['<', '>']).parse::<f64>();
        let target = arguments.split_once('<').map_or("", |(_, rest)| rest);
        match name {
            "sendto" | "sendmsg" if target.starts_with("NETLINK") => self.sent_to_netlink += bytes,
            "recvfrom" | "recvmsg"
                if target.starts_with("NETLINK") && !arguments.contains("MSG_PEEK") =>
            {
                self.read_from_netlink += bytes;
            }
            "write" | "pwrite64" | "writev" if is_file(target) => self.written += bytes,
            "fsync" | "fdatasync" => {
                self.syncs += 1;
                self.synced += took.unwrap_or_default() * 1e3;
            }
            "poll" => self.polled += took.unwrap_or_default() * 1e3,
            "close" => {
                self.closes += 1;
                self.closed += took.unwrap_or_default() * 1e3;
            }
            "getpid" => {
                self.idle += 1;
                self.idled += took.unwrap_or_default() * 1e3;
            }
            _ => {}
        }
    }
}

/// Whether a path that strace shows is a file's with bytes of its own.
fn is_file(target: &str) -> bool {
    let kernels = ["/proc/", "/sys/", "/dev/"];
    target.starts_with("/dev/shm/")
        || target.starts_with('/') && !kernels.iter().any(|it| target.starts_with(it))
}
