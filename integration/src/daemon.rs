// SPDX-License-Identifier: Apache-2.0
//! The daemon as a process: its log, its resources, and its end.

use crate::{Netns, plugin::built, stopwatch::Stopwatch, wait::TIMEOUT};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Returns the path of the `rdma-device-plugin` under test, as `scripts/build` builds it.
#[track_caller]
pub fn rdma_device_plugin() -> PathBuf {
    built("RDMA_DEVICE_PLUGIN", "rdma-device-plugin")
}

type Lines = Arc<(Mutex<Vec<String>>, Condvar)>;

/// A running daemon. Drop kills the daemon.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    lines: Lines,
    reader: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts the daemon by `command`, and collects its standard error.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let stderr = BufReader::new(child.stderr.take().expect("its standard error"));
        let lines: Lines = Arc::default();
        let log = lines.clone();
        let reader = thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                log.0.lock().expect("the lines").push(line);
                log.1.notify_all();
            }
        });
        Self {
            child,
            lines,
            reader: Some(reader),
        }
    }

    /// Returns the number of the daemon's log lines that contain `words`.
    pub fn count(&self, words: &str) -> usize {
        let lines = self.lines.0.lock().expect("the lines");
        lines.iter().filter(|line| line.contains(words)).count()
    }

    /// Waits for a log line that contains `words`, and returns the first one.
    #[track_caller]
    pub fn line(&self, words: &str) -> String {
        self.wait_for_log(words);
        let lines = self.lines.0.lock().expect("the lines");
        let line = lines.iter().find(|line| line.contains(words));
        line.expect("a line of the log").clone()
    }

    /// Waits until the daemon has logged `words`.
    #[track_caller]
    pub fn wait_for_log(&self, words: &str) {
        self.wait_for_log_times(words, 1);
    }

    /// Waits until at least `times` log lines of the daemon contain `words`.
    #[track_caller]
    pub fn wait_for_log_times(&self, words: &str, times: usize) {
        let lines = self.lines.0.lock().expect("the lines");
        let enough = |lines: &mut Vec<String>| {
            lines.iter().filter(|line| line.contains(words)).count() < times
        };
        let waited = self.lines.1.wait_timeout_while(lines, TIMEOUT, enough);
        let (lines, waited) = waited.expect("the lines");
        let log = lines.join("\n");
        // a panic must not poison the lock, because the reader of the log needs it
        drop(lines);
        assert!(
            !waited.timed_out(),
            "not logged {times} times: {words:?}\n{log}"
        );
    }

    /// Waits until the daemon has reported its address for metrics. Returns the HTTP answer for `path`, with its head.
    #[track_caller]
    pub fn get(&self, path: &str) -> String {
        let line = self.line("metrics are at http://");
        let address = line.split("http://").nth(1).expect("an address");
        let address = address.split('/').next().expect("a host and a port");
        let mut stream = TcpStream::connect(address).expect("it listens");
        let timeout = Some(TIMEOUT);
        stream.set_read_timeout(timeout).expect("a time limit");
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
        )
        .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// Sends the daemon a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("a signal sent");
    }

    /// Returns the daemon's process.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"))
    }

    fn proc(&self, below: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{below}", self.child.id()))
    }

    /// Returns the number of open file descriptors.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(self.proc("fd")).expect("descriptors").count()
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        fs::read_dir(self.proc("task")).expect("threads").count()
    }

    /// Returns the resident memory in KiB.
    pub fn memory(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// Returns the largest resident memory since the daemon's start, in KiB.
    pub fn peak_memory(&self) -> u64 {
        self.status("VmHWM:")
    }

    fn status(&self, field: &str) -> u64 {
        let status = fs::read_to_string(self.proc("status")).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.expect(field).parse().expect("a number")
    }

    /// Returns the number of times that the daemon's present threads went to sleep.
    pub fn sleeps(&self) -> u64 {
        let threads = fs::read_dir(self.proc("task")).expect("threads");
        let of = |thread: fs::DirEntry| {
            // empty for a thread that has just ended
            let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.map_or(0, |it| it.trim().parse().expect("a number"))
        };
        threads.map(|it| of(it.expect("a thread"))).sum()
    }

    /// Returns the CPU time that the daemon has used, in ticks of a hundredth of a second.
    pub fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(self.proc("stat")).expect("its times");
        let fields: Vec<_> = stat
            .rsplit(") ")
            .next()
            .expect("fields")
            .split(' ')
            .collect();
        // utime and stime, fields 14 and 15 of proc_pid_stat(5)
        [fields[11], fields[12]]
            .iter()
            .map(|it| it.parse::<u64>().expect("ticks"))
            .sum()
    }

    /// Sends SIGKILL, and returns when the daemon has ended.
    #[track_caller]
    pub fn kill(&mut self) {
        self.child.kill().expect("a signal sent");
        self.child.wait().expect("a status");
    }

    /// Sends `signal`. Returns the daemon's exit status, and the time until it ended, as [`Stopwatch`] measures it.
    #[track_caller]
    pub fn end(mut self, signal: Signal) -> (ExitStatus, Duration) {
        let (at, end) = (Stopwatch::start(), Instant::now() + TIMEOUT);
        self.signal(signal);
        loop {
            if let Some(status) = self.child.try_wait().expect("a status") {
                return (status, at.elapsed());
            }
            assert!(Instant::now() < end, "it does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        if thread::panicking() {
            // the lock is poisoned if a thread panicked while it had the lock
            let lines = self.lines.0.lock();
            let lines = lines.unwrap_or_else(PoisonError::into_inner);
            eprintln!("the daemon's log:\n{}", lines.join("\n"));
        }
    }
}

/// Runs `rdma-device-plugin doctor` on `host`, with all permissions. The CNI list has `plugins`, but only this
/// project's plugins are installed. Returns the exit code, and the findings as one line each.
#[track_caller]
pub fn doctor(host: &Netns, plugins: &[Value], options: &[&str]) -> (i32, String) {
    let directory = TempDir::new().expect("a directory");
    let list = json!({"cniVersion": "1.1.0", "name": "pods", "plugins": plugins});
    fs::write(directory.path().join("10-pods.conflist"), list.to_string()).expect("written");
    let program = rdma_device_plugin();
    let mut command = host.command(&program);
    command.args(["doctor", "--json", "--cni-conf-dir"]);
    command.arg(directory.path()).arg("--cni-bin-dir");
    command.arg(program.parent().expect("a directory"));
    let output = command.args(options).output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors, "");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["unseen"], json!([]));
    let findings = report["findings"].as_array().expect("a list");
    let line = |finding: &Value| format!("{}: {}\n", finding["severity"], finding["what"]);
    let lines = findings.iter().map(line).collect();
    (output.status.code().expect("not killed"), lines)
}
