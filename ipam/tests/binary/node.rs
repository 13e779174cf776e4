// SPDX-License-Identifier: Apache-2.0
//! A node with a data directory, and a caller of IPAM plugins.

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    net::IpAddr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};
use tempfile::TempDir;

pub(crate) const RDMA_IPAM: &str = env!("CARGO_BIN_EXE_rdma-ipam");
pub(crate) const HOST_LOCAL: &str = "/usr/lib/cni/host-local";

pub(crate) struct Node {
    directory: TempDir,
    is_mounted: bool,
}

/// The outcome of a plugin's call.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A call of a plugin, whose details a test can change.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    program: String,
    /// Command that runs the program.
    runner: Vec<String>,
    environment: BTreeMap<String, String>,
    input: Value,
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.is_mounted {
            // an error of this call must not hide the reason why a test failed
            let _ = umount2(self.directory.path(), MntFlags::MNT_DETACH);
        }
    }
}

impl Node {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().expect("a directory"),
            is_mounted: false,
        }
    }

    /// Returns a node with its files in memory, for tests with many files.
    pub(crate) fn in_memory() -> Self {
        let mut node = Self::new();
        let kind = Some("tmpfs");
        mount(
            kind,
            node.directory.path(),
            kind,
            MsFlags::empty(),
            Some("size=1g"),
        )
        .expect("a tmpfs (these tests need root)");
        node.is_mounted = true;
        node
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.directory.path().join("networks")
    }

    pub(crate) fn leases_dir(&self) -> PathBuf {
        self.data_dir().join("net")
    }

    /// Makes the note about the conflict of `address` older by `seconds`. Returns the note's path.
    pub(crate) fn age_conflict(&self, address: &str, seconds: u64) -> PathBuf {
        let mark = self.leases_dir().join("rdma-ipam/conflicts").join(address);
        let seen = fs::read_link(&mark).unwrap();
        let seen: u64 = seen.to_str().unwrap().parse().unwrap();
        fs::remove_file(&mark).unwrap();
        symlink((seen - seconds).to_string(), &mark).unwrap();
        mark
    }

    pub(crate) fn conf(&self, ipam: Value) -> Value {
        let mut ipam: Map<String, Value> = ipam.as_object().expect("an object").clone();
        ipam.insert("type".into(), "rdma-ipam".into());
        ipam.entry("dataDir")
            .or_insert_with(|| self.data_dir().to_str().into());
        json!({"cniVersion": "1.1.0", "name": "net", "ipam": ipam})
    }

    pub(crate) fn leases(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.leases_dir()) else {
            return vec![];
        };
        let names = entries.map(|it| {
            it.expect("an entry")
                .file_name()
                .into_string()
                .expect("text")
        });
        let mut ips: Vec<IpAddr> = names.filter_map(|name| name.parse().ok()).collect();
        ips.sort();
        ips.iter().map(ToString::to_string).collect()
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        let directory = self.leases_dir().join("rdma-ipam/attachments");
        let Ok(entries) = fs::read_dir(directory) else {
            return vec![];
        };
        let mut names: Vec<String> = entries
            .map(|it| {
                it.expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("text")
            })
            .collect();
        names.sort();
        names
    }

    pub(crate) fn write(&self, name: &str, content: &str) {
        fs::create_dir_all(self.leases_dir()).expect("a directory");
        fs::write(self.leases_dir().join(name), content).expect("a file");
    }
}

/// Returns a call of `command` for the attachment (`container`, `eth0`) with this configuration.
pub(crate) fn call(command: &str, container: &str, input: &Value) -> Call {
    let environment = [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", container),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
    ];
    Call {
        program: RDMA_IPAM.into(),
        runner: vec![],
        environment: environment.map(|(k, v)| (k.into(), v.into())).into(),
        input: input.clone(),
    }
}

impl Call {
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.environment.remove(name);
        self
    }

    pub(crate) fn program(mut self, program: &str) -> Self {
        self.program = program.into();
        self
    }

    pub(crate) fn host_local(mut self) -> Self {
        assert!(
            Path::new(HOST_LOCAL).exists(),
            "there is no {HOST_LOCAL}: apt-get install containernetworking-plugins"
        );
        // Debian's host-local does not support CNI 1.1
        if self.input["cniVersion"] == "1.1.0" {
            self.input["cniVersion"] = "1.0.0".into();
        }
        self.program(HOST_LOCAL)
    }

    /// Runs the plugin by `runner`, a program and its arguments.
    pub(crate) fn by(mut self, runner: &[&str]) -> Self {
        self.runner = runner.iter().map(ToString::to_string).collect();
        self
    }

    pub(crate) fn start(&self) -> Child {
        let words: Vec<&String> = self.runner.iter().chain([&self.program]).collect();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .env_clear()
            .envs(&self.environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the plugin starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        let text = match &self.input {
            Value::String(text) => text.clone(),
            input => input.to_string(),
        };
        // a plugin may answer without reading its input
        let _ = stdin.write_all(text.as_bytes());
        child
    }

    pub(crate) fn run(&self) -> Outcome {
        let output = self.start().wait_with_output().expect("its end");
        Outcome {
            success: output.status.success(),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    /// Runs the call. Fails if the call fails or has output.
    #[track_caller]
    pub(crate) fn ok(&self) {
        let outcome = self.run();
        assert!(
            outcome.success && outcome.stdout.is_empty(),
            "{self:?}: {outcome:?}"
        );
    }

    /// Runs the call and returns its result. Fails if the call fails.
    #[track_caller]
    pub(crate) fn result(&self) -> Value {
        let outcome = self.run();
        assert!(outcome.success, "{self:?}: {outcome:?}");
        serde_json::from_str(&outcome.stdout).expect("one JSON object")
    }

    /// Runs the call and returns its addresses. Fails if the call fails.
    #[track_caller]
    pub(crate) fn addresses(&self) -> Vec<String> {
        let result = self.result();
        let ips = result["ips"].as_array().expect("ips");
        let text = |ip: &Value| ip["address"].as_str().expect("address").to_owned();
        ips.iter().map(text).collect()
    }

    /// Runs the call and returns its one address without the prefix length. Fails if the call fails.
    #[track_caller]
    pub(crate) fn address(&self) -> String {
        let addresses = self.addresses();
        assert_eq!(addresses.len(), 1, "{self:?}");
        addresses[0].split_once('/').expect("a length").0.to_owned()
    }

    /// Runs the call and returns its error code and message. Fails if the call succeeds.
    #[track_caller]
    pub(crate) fn error(&self) -> (u64, String) {
        let outcome = self.run();
        assert!(!outcome.success, "{self:?}: {outcome:?}");
        let error: Value = serde_json::from_str(&outcome.stdout).expect("one JSON object");
        assert!(error["cniVersion"].is_string(), "{error}");
        let message = error["msg"].as_str().expect("msg").to_owned();
        (error["code"].as_u64().expect("code"), message)
    }

    /// Runs the call. Fails if the call does not fail with exactly this code and message.
    #[track_caller]
    pub(crate) fn fails(&self, code: u64, message: &str) {
        assert_eq!(self.error(), (code, message.to_owned()));
    }
}

/// Runs `work` on a thread in its own network and mount namespaces. The thread's child processes inherit these
/// namespaces.
pub(crate) fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let inside = || {
            let flags = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS;
            unshare(flags).expect("these tests need root");
            shell("mount --make-rprivate / && ip link set lo up");
            work()
        };
        match scope.spawn(inside).join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[track_caller]
pub(crate) fn shell(script: &str) {
    let output = Command::new("sh")
        .args(["-ec", script])
        .output()
        .expect("a shell");
    assert!(output.status.success(), "{script}: {output:?}");
}
