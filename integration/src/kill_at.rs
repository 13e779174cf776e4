// SPDX-License-Identifier: Apache-2.0
//! Kills a running process just before one of its changes of a file system, and lists these changes. Both use strace,
//! which counts each system call separately in each thread.

use crate::wait;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    collections::BTreeMap,
    fs,
    process::{Child, Command, Stdio},
};
use tempfile::NamedTempFile;

/// System calls that change which files exist, or that make such a change durable. Two changes do not count: writing
/// into a file that has no final name yet, and creating an empty directory.
const CHANGES: [&str; 9] = [
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "unlink",
    "unlinkat",
    "fsync",
    "fdatasync",
];

/// Traces a process by strace. Dropping this value ends strace.
#[derive(Debug)]
struct Tracer(Child);

impl Tracer {
    #[track_caller]
    fn start(pid: Pid, arguments: &[&str]) -> Self {
        let mut command = Command::new("strace");
        command.args(["-f", "-qqq"]).args(arguments);
        command.args(["-p", &pid.to_string()]);
        let strace = command.stdin(Stdio::null()).spawn().expect("strace");
        let tracer = Self(strace);
        let line = format!("TracerPid:\t{}", tracer.0.id());
        let is_traced = |task: fs::DirEntry| {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            // empty for a thread that has just ended
            status.is_empty() || status.lines().any(|it| it == line)
        };
        wait::until("strace follows all threads", || {
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
            tasks.flatten().all(is_traced)
        });
        tracer
    }
}

impl Tracer {
    /// Writes the report, and detaches from the processes.
    #[track_caller]
    fn end(mut self) {
        let own = i32::try_from(self.0.id()).expect("a pid");
        kill(Pid::from_raw(own), Signal::SIGTERM).expect("a signal sent");
        self.0.wait().expect("its end");
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // SIGKILL: the kernel then releases the traced processes. On SIGTERM strace would wait for a process that has
        // ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the changes of the process `pid` during `work`: each system call, with the largest number of its calls by
/// one thread.
#[track_caller]
pub fn changes(pid: Pid, work: impl FnOnce()) -> BTreeMap<String, u32> {
    let file = NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a path");
    let calls = format!("trace={}", CHANGES.join(","));
    let tracer = Tracer::start(pid, &["-o", path, "-e", &calls]);
    work();
    tracer.end();
    let text = fs::read_to_string(file.path()).expect("what strace saw");
    let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for line in text.lines() {
        // `1234 rename("a", "b") = 0`; a resumed call was counted when it began
        let mut words = line.split_whitespace();
        let (thread, call) = (words.next(), words.next().unwrap_or_default());
        let name = call.split('(').next().unwrap_or_default();
        if CHANGES.contains(&name) {
            *counts
                .entry((thread.unwrap_or_default(), name))
                .or_default() += 1;
        }
    }
    let mut changes = BTreeMap::new();
    for ((_, name), count) in counts {
        let most: &mut u32 = changes.entry(name.to_owned()).or_default();
        *most = count.max(*most);
    }
    changes
}

/// Runs `work`. Meanwhile the process `pid` is killed before its `number`th call of `call`, counted from 1.
#[track_caller]
pub fn killed<T>(pid: Pid, (call, number): (&str, u32), work: impl FnOnce() -> T) -> T {
    let (calls, inject) = (
        format!("trace={call}"),
        format!("inject={call}:signal=KILL:when={number}"),
    );
    let _tracer = Tracer::start(pid, &["-o", "/dev/null", "-e", &calls, "-e", &inject]);
    work()
}
