// SPDX-License-Identifier: Apache-2.0
//! Tests of the plugins on a made-up node with the real program: `install`, the chain, and
//! `uninstall`.

mod binaries;
mod cached;
mod hindered;
mod keeping;
mod kept_by_others;
mod late;
mod leaving;
mod odd_files;
mod own_entries;
mod placing;
mod programs;
mod putting;
mod staying;
mod stress;
mod succeeding;
mod without_kubelet;

use integration::{Machine, machine::NIC};
use staying::Staying;
use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::{Command, Output},
};

const FLANNEL: &str = r#"{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "flannel",
      "delegate": {
        "hairpinMode": true
      }
    },
    {
      "type": "portmap",
      "capabilities": {"portMappings": true}
    }
  ]
}
"#;

const TERWAY: &str =
    "{\n  \"cniVersion\": \"0.4.0\",\n  \"name\": \"terway\",\n  \"type\": \"terway\"\n}\n";

/// Plugins that the networks of these tests call.
const PRESENT: [&str; 3] = ["flannel", "portmap", "terway"];

/// Returns a plugin that reports which CNI versions it supports.
fn plugin(name: &str, version: &str) -> String {
    format!("#!/bin/sh\n# {name} {version}\necho '{{\"supportedVersions\":[\"1.0.0\"]}}'\n")
}

/// A node, and the plugins that `install` puts onto it.
struct Node {
    machine: Machine,
}

const SOCKET: &str = "kubelet/pod-resources/kubelet.sock";

/// Content and metadata of a file.
type Seen = (Vec<u8>, u32, u32, i64, i64);

/// All files by path.
type Files = BTreeMap<PathBuf, Seen>;

impl Node {
    fn new() -> Self {
        let machine = Machine::with(&[NIC]);
        let node = Self { machine };
        for directory in [
            "opt/cni/bin",
            "etc/cni/net.d",
            "new",
            "kubelet/pod-resources",
        ] {
            fs::create_dir_all(node.path(directory)).expect("a directory");
        }
        PRESENT
            .iter()
            .for_each(|it| node.program(it, "the network's"));
        UnixListener::bind(node.path(SOCKET)).expect("a socket");
        fs::remove_dir(node.path("state")).expect("not there yet");
        node.version("1");
        node
    }

    fn with_list(text: &str) -> Self {
        let node = Self::new();
        node.net("10-flannel.conflist", text);
        node
    }

    /// Makes another version of the plugins available for `install`.
    fn version(&self, version: &str) {
        for name in ["rdma-cni", "rdma-ipam"] {
            self.machine
                .write(&format!("new/{name}"), &plugin(name, version));
        }
    }

    /// Writes a program into the runtime's plugin directory.
    fn program(&self, name: &str, text: &str) {
        let below = format!("opt/cni/bin/{name}");
        self.machine.write(&below, text);
        let path = self.path(&below);
        fs::set_permissions(path, Permissions::from_mode(0o755)).expect("a mode");
    }

    fn net(&self, file: &str, text: &str) {
        self.machine.write(&format!("etc/cni/net.d/{file}"), text);
    }

    fn path(&self, below: &str) -> PathBuf {
        self.machine.path(below)
    }

    fn read(&self, below: &str) -> String {
        fs::read_to_string(self.path(below)).unwrap_or_else(|error| panic!("{below}: {error}"))
    }

    fn run(&self, verb: &str, arguments: &[&str]) -> Output {
        self.command(verb, arguments).output().expect("it runs")
    }

    fn command(&self, verb: &str, arguments: &[&str]) -> Command {
        let mut command = self.bare(verb);
        for (flag, below) in [
            ("--cni-bin-dir", "opt/cni/bin"),
            ("--cni-conf-dir", "etc/cni/net.d"),
            ("--state-dir", "state"),
        ] {
            command.arg(flag).arg(self.path(below));
        }
        command.args(arguments);
        command
    }

    /// Returns a command without any directory option.
    fn bare(&self, verb: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdma-device-plugin"));
        command.env_clear().arg(verb);
        if verb == "install" {
            command.arg("--kubelet-dir").arg(self.path("kubelet"));
        } else {
            command.arg("--cni-cache-dir").arg(self.path("results"));
            command.arg("--multus-dir").arg(self.path("multus"));
        }
        command
    }

    #[track_caller]
    fn install(&self) -> String {
        let new = self.path("new");
        let new = new.to_str().expect("a path");
        text_of(&self.run("install", &["--from", new]))
    }

    #[track_caller]
    fn uninstall(&self) -> String {
        text_of(&self.run("uninstall", &[]))
    }

    /// Starts `uninstall --stay`.
    fn staying(&self) -> Staying {
        Staying::start(self.command("uninstall", &["--stay"]))
    }

    /// Runs `uninstall` in a mount namespace in which only the state directory is mounted, as in a container.
    fn uninstall_in_container(&self) -> Output {
        self.uninstall_with_mounts(&[("state", &self.path("state"))])
    }

    /// Runs `uninstall` in a mount namespace in which each directory of the node is mounted at a path.
    fn uninstall_with_mounts(&self, mounts: &[(&str, &Path)]) -> Output {
        let program = self.command("uninstall", &[]);
        let script = "while [ \"$1\" != -- ]; do mount --bind \"$1\" \"$2\" && shift 2 || exit 9; done; shift; exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]);
        for (below, onto) in mounts {
            command.args([&self.path(below), *onto]);
        }
        command.arg("--");
        command.arg(program.get_program()).args(program.get_args());
        command.output().expect("unshare")
    }

    /// Returns the node's files in `opt`, `etc` and the state directory.
    fn seen(&self) -> Files {
        let mut seen = BTreeMap::new();
        let mut left = ["opt", "etc", "state"].map(|it| self.path(it)).to_vec();
        while let Some(path) = left.pop() {
            let Ok(found) = fs::symlink_metadata(&path) else {
                continue;
            };
            if found.is_dir() {
                let entries = fs::read_dir(&path).expect("a directory");
                left.extend(entries.map(|entry| entry.expect("an entry").path()));
                continue;
            }
            let content = fs::read(&path).expect("a file");
            let times = (found.mtime(), found.mtime_nsec());
            seen.insert(path, (content, found.mode(), found.uid(), times.0, times.1));
        }
        seen
    }
}

#[track_caller]
fn text_of(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert_eq!(error, "");
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Returns the error of a failed command, which must be one line.
#[track_caller]
fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = String::from_utf8(output.stderr.clone()).expect("text");
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}
