// SPDX-License-Identifier: Apache-2.0
//! Runs one CNI plugin with exact environment and input, and with a deadline. Returns the result.

use crate::{Netns, wait};
use nix::{sys::signal, unistd::Pid};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    thread::{self, JoinHandle},
    time::Duration,
};

/// Time limit for each plugin, if a test sets no other limit.
pub const DEADLINE: Duration = Duration::from_secs(240);

/// Directory of Debian's containernetworking-plugins.
pub const DEBIAN_PLUGINS: &str = "/usr/lib/cni";

/// Returns the path of the `rdma-cni` under test.
#[track_caller]
pub fn rdma_cni() -> PathBuf {
    built("RDMA_CNI", "rdma-cni")
}

/// Returns the path of an earlier commit's `rdma-cni`, which `scripts/versions` builds.
#[track_caller]
pub fn earlier_rdma_cni() -> PathBuf {
    let versions = std::env::var_os("RDMA_CNI_VERSIONS").map(PathBuf::from);
    let versions = versions.unwrap_or_else(|| {
        let home = std::env::var_os("HOME").expect("HOME");
        Path::new(&home).join(".cache/rdma-cni-versions")
    });
    let path = versions.join("earlier/rdma-cni");
    assert!(
        path.exists(),
        "there is no {path:?}: run scripts/versions first"
    );
    path
}

/// Returns the `CNI_PATH` with the directory of `plugin`, which is under test, the directories `others`, and Debian's.
#[track_caller]
pub fn cni_path(plugin: &Path, others: &[&Path]) -> String {
    let own = plugin.parent().expect("a program is in a directory");
    let debian = [Path::new(DEBIAN_PLUGINS)];
    let all = [own]
        .into_iter()
        .chain(others.iter().copied())
        .chain(debian);
    let path = std::env::join_paths(all).expect("no colons");
    path.into_string().expect("UTF-8")
}

/// Returns the program that the environment variable `variable` names. If it is unset, returns the program in `dist/`.
#[track_caller]
pub(crate) fn built(variable: &str, name: &str) -> PathBuf {
    let path = match std::env::var_os(variable) {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../dist")
            .join(name),
    };
    path.canonicalize().unwrap_or_else(|error| {
        panic!(
            "there is no {} ({error}): run scripts/build first, or set {variable}",
            path.display()
        )
    })
}

/// Returns the path of one of Debian's plugins.
#[track_caller]
pub fn debian(plugin: &str) -> PathBuf {
    let path = Path::new(DEBIAN_PLUGINS).join(plugin);
    assert!(
        path.exists(),
        "there is no {path:?}: apt-get install containernetworking-plugins"
    );
    path
}

/// A run of a plugin, with environment and input.
#[derive(Debug)]
pub struct Invocation<'a> {
    host: &'a Netns,
    program: PathBuf,
    arguments: Vec<String>,
    environment: BTreeMap<String, String>,
    input: String,
    stdout: Option<File>,
    limit: Duration,
}

impl<'a> Invocation<'a> {
    /// Describes a run of `program` in the namespace `host`. Its environment has only `PATH`, and its input is empty.
    pub fn new(host: &'a Netns, program: &Path) -> Self {
        Self {
            host,
            program: program.to_owned(),
            arguments: vec![],
            environment: BTreeMap::new(),
            input: String::new(),
            stdout: None,
            limit: DEADLINE,
        }
    }

    /// Sets the time limit in place of [`DEADLINE`].
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Replaces the program.
    pub fn program(mut self, program: &Path) -> Self {
        self.program = program.to_owned();
        self
    }

    /// Runs the plugin by `program`. The arguments of `program` are `arguments`, the plugin's path and the plugin's
    /// arguments.
    pub fn by(mut self, program: &Path, arguments: Vec<String>) -> Self {
        let own = std::mem::replace(&mut self.program, program.to_owned());
        let own = own.to_str().expect("UTF-8").to_owned();
        let rest = std::mem::replace(&mut self.arguments, arguments);
        self.arguments.push(own);
        self.arguments.extend(rest);
        self
    }

    /// Adds a command-line argument.
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<Path>) -> Self {
        let value = value.as_ref().to_str().expect("UTF-8").to_owned();
        self.environment.insert(name.to_owned(), value);
        self
    }

    /// Removes an environment variable.
    pub fn without(mut self, name: &str) -> Self {
        self.environment.remove(name);
        self
    }

    /// Sets the plugin's standard input.
    pub fn input(mut self, configuration: &Value) -> Self {
        self.input = configuration.to_string();
        self
    }

    /// Sets the standard input to a text that need not be JSON.
    pub fn raw_input(mut self, text: &str) -> Self {
        self.input = text.to_owned();
        self
    }

    /// Sends the plugin's standard output to `file` instead of the test.
    pub fn stdout(mut self, file: File) -> Self {
        self.stdout = Some(file);
        self
    }

    /// Runs the plugin to its end.
    #[track_caller]
    pub fn run(self) -> Outcome {
        self.start().wait()
    }

    /// Starts the plugin.
    #[track_caller]
    pub fn start(self) -> Running {
        let mut command = self.host.command(&self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .envs(&self.environment)
            .stdin(Stdio::piped())
            .stdout(self.stdout.map_or_else(Stdio::piped, Stdio::from))
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let mut stdin = child.stdin.take().expect("piped");
        let input = self.input;
        // An error is ignored: a plugin may end without reading all of its input, and the test checks the plugin's
        // answer.
        thread::spawn(move || stdin.write_all(input.as_bytes()));
        Running {
            what: format!("{} {:?}", self.program.display(), self.environment),
            stdout: child.stdout.take().map(read_all),
            stderr: child.stderr.take().map(read_all),
            child,
            limit: self.limit,
        }
    }
}

fn read_all(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = vec![];
        from.read_to_end(&mut bytes).expect("a pipe can be read");
        String::from_utf8(bytes).expect("plugins print UTF-8")
    })
}

/// A running plugin.
#[derive(Debug)]
pub struct Running {
    what: String,
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
    limit: Duration,
}

impl Running {
    /// Waits for the plugin's end. Panics at the time limit.
    #[track_caller]
    pub fn wait(mut self) -> Outcome {
        let (mut status, limit) = (None, self.limit);
        if !wait::within(limit, || {
            status = self.child.try_wait().expect("our own child");
            status.is_some()
        }) {
            self.kill();
            panic!("did not end within {limit:?}: {}", self.what);
        }
        let text = |reader: Option<JoinHandle<String>>| {
            reader.map_or_else(String::new, |reader| {
                reader.join().expect("the reader ends")
            })
        };
        Outcome {
            what: self.what,
            status: status.expect("it ended"),
            stdout: text(self.stdout),
            stderr: text(self.stderr),
        }
    }

    /// Returns true if the plugin has ended within `limit`.
    pub fn ends_within(&mut self, limit: Duration) -> bool {
        wait::within(limit, || {
            self.child.try_wait().expect("our own child").is_some()
        })
    }

    /// Sends SIGKILL to the plugin and to all programs that it started.
    pub fn kill(&mut self) {
        let _ = signal::killpg(self.pid(), signal::Signal::SIGKILL);
    }

    /// Sends SIGKILL to the plugin alone. Programs that the plugin started continue to run.
    pub fn kill_alone(&mut self) {
        let _ = self.child.kill();
    }

    /// Waits until the plugin has a child called `name`, and returns the child. Returns `None` if the plugin ended
    /// before.
    pub fn await_child(&mut self, name: &str) -> Option<Pid> {
        while self.child.try_wait().expect("our own child").is_none() {
            let found = self.children().into_iter().find(|it| is_called(*it, name));
            if found.is_some() {
                return found;
            }
            thread::yield_now();
        }
        None
    }

    /// Sends SIGKILL to `child` if it is still a child called `name`. Returns true if it sent the signal.
    pub fn kill_child(&mut self, child: Pid, name: &str) -> bool {
        self.children().contains(&child)
            && is_called(child, name)
            && signal::kill(child, signal::Signal::SIGKILL).is_ok()
    }

    fn children(&self) -> Vec<Pid> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid()));
        let lists = threads.into_iter().flatten().filter_map(|thread| {
            let list = thread.ok()?.path().join("children");
            fs::read_to_string(list).ok()
        });
        let numbers = lists.flat_map(|list| {
            let words: Vec<i32> = list.split(' ').filter_map(|it| it.parse().ok()).collect();
            words
        });
        numbers.map(Pid::from_raw).collect()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

fn is_called(process: Pid, name: &str) -> bool {
    fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|comm| comm.trim() == name)
}

/// Result of a plugin's run.
#[derive(Debug)]
pub struct Outcome {
    what: String,
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output. Empty if the test redirected it.
    pub stdout: String,
    /// The plugin's log.
    pub stderr: String,
}

impl Outcome {
    /// Asserts that the plugin succeeded and printed one JSON object. Returns the object.
    #[track_caller]
    pub fn result(&self) -> Value {
        assert!(self.status.success(), "failed: {self}");
        let value: Value = serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("printed no JSON ({error}): {self}"));
        assert!(value.is_object(), "printed no JSON object: {self}");
        value
    }

    /// Asserts that the plugin succeeded and printed nothing, as DEL, CHECK, GC and STATUS do.
    #[track_caller]
    pub fn silent(&self) {
        assert!(self.status.success(), "failed: {self}");
        assert_eq!(self.stdout, "", "printed something: {self}");
    }

    /// Asserts that the plugin failed as the specification requires: exit status 1 or above, and one JSON object with
    /// `cniVersion`, `code` and `msg`. Returns the object.
    #[track_caller]
    pub fn failure(&self) -> Failure {
        assert!(!self.status.success(), "succeeded: {self}");
        assert!(self.status.signal().is_none(), "killed by a signal: {self}");
        let value: Value = serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("the error is no JSON ({error}): {self}"));
        let code = value["code"]
            .as_u64()
            .unwrap_or_else(|| panic!("no code: {self}"));
        let message = value["msg"]
            .as_str()
            .unwrap_or_else(|| panic!("no msg: {self}"))
            .to_owned();
        assert!(value["cniVersion"].is_string(), "no cniVersion: {self}");
        let details = value["details"].as_str().unwrap_or("").to_owned();
        Failure {
            code,
            message,
            details,
        }
    }

    /// Asserts that the plugin failed with `code`. Returns message and details as one text.
    #[track_caller]
    pub fn error(&self, code: u64) -> String {
        let failure = self.failure();
        assert_eq!(
            failure.code, code,
            "another code was expected ({code}): {self}"
        );
        failure.text()
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            what,
            status,
            stdout,
            stderr,
        } = self;
        write!(f, "{what}\n{status}\nstdout: {stdout}\nstderr: {stderr}")
    }
}

/// A plugin's error object.
#[derive(Debug)]
pub struct Failure {
    /// `code`
    pub code: u64,
    /// `msg`
    pub message: String,
    /// `details`. Empty if the object has none.
    pub details: String,
}

impl Failure {
    /// Returns message and details as one text.
    pub fn text(&self) -> String {
        format!("{} {}", self.message, self.details)
    }
}
