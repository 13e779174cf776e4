// SPDX-License-Identifier: Apache-2.0
//! `install` and `uninstall` of `rdma-device-plugin` on a constructed node. After each fault `uninstall` runs. In every
//! second turn `install` runs before it.

use super::story::{End, Story, must_succeed, without_times};
use crate::{
    Files, Invocation, Machine, Netns,
    machine::NIC,
    tracer::{self, Fault, Report},
};
use std::{
    env,
    fs::{self, Permissions},
    mem,
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// The network's list, as in flannel's manifest.
const LIST: &str = r#"{
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

/// Directories of a node to which `install` writes.
const SEEN: [&str; 3] = ["opt", "etc", "state"];

/// A command of `rdma-device-plugin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Installation of both plugins, and of the entry in the list.
    Install,
    /// Removal of the installation.
    Uninstall,
}

/// A node, and a verb that is run on it.
#[derive(Debug)]
pub struct Programs {
    verb: Verb,
    /// Value of `--placement`, if set.
    placement: Option<&'static str>,
    pub(super) machine: Machine,
    program: PathBuf,
    injector: PathBuf,
    pub(super) netns: Netns,
    before: Files,
    /// Files after an `install` without a fault.
    installed: Option<Files>,
    /// Differences of the last successful `install` from the first one.
    lacking: Vec<String>,
    /// Returns true if a file may exist that does not belong to an installation.
    pub(super) is_others: fn(&Machine, &Path) -> bool,
    /// Kubelet's directory, in which nothing is installed.
    kubelet: TempDir,
    _kubelet: UnixListener,
}

impl Programs {
    /// Makes a node. `programs` are `rdma-device-plugin`, whose directory has the plugins, and the injector.
    #[track_caller]
    pub fn new(verb: Verb, [program, injector]: [PathBuf; 2]) -> Self {
        let machine = Machine::with(&[NIC]);
        for directory in ["opt/cni/bin", "etc/cni/net.d"] {
            fs::create_dir_all(machine.path(directory)).expect("a directory");
        }
        for plugin in ["flannel", "portmap"] {
            let below = format!("opt/cni/bin/{plugin}");
            machine.write(&below, "#!/bin/sh\n");
            let executable = Permissions::from_mode(0o755);
            fs::set_permissions(machine.path(&below), executable).expect("a mode");
        }
        machine.write("etc/cni/net.d/10-flannel.conflist", LIST);
        fs::remove_dir(machine.path("state")).expect("not there yet");
        // the socket is not on the disk that loses power, because it would keep this disk busy
        let kubelet = TempDir::new_in(env::temp_dir()).expect("a directory");
        let pod_resources = kubelet.path().join("pod-resources");
        fs::create_dir(&pod_resources).expect("a directory");
        let socket = UnixListener::bind(pod_resources.join("kubelet.sock")).expect("a socket");
        let before = files(&machine);
        Self {
            verb,
            placement: None,
            machine,
            program,
            injector,
            netns: Netns::own(),
            before,
            installed: None,
            lacking: vec![],
            is_others: |_, _| false,
            kubelet,
            _kubelet: socket,
        }
    }

    /// Makes the network's own directory the place of the entry. `install` moves the entry there from the list.
    #[must_use]
    pub fn in_directory(mut self) -> Self {
        self.placement = Some("directory");
        self
    }

    fn call(&self, verb: Verb) -> Invocation<'_> {
        self.call_with(verb, self.placement)
    }

    fn call_with(&self, verb: Verb, placement: Option<&str>) -> Invocation<'_> {
        let path = |below: &str| self.machine.path(below).display().to_string();
        let mut call = Invocation::new(&self.netns, &self.program);
        let mut arguments = vec![
            ["--cni-bin-dir".to_owned(), path("opt/cni/bin")],
            ["--cni-conf-dir".to_owned(), path("etc/cni/net.d")],
            ["--state-dir".to_owned(), path("state")],
        ];
        match verb {
            Verb::Install => {
                call = call.argument("install");
                let from = self.program.parent().expect("a directory");
                arguments.push(["--from".to_owned(), from.display().to_string()]);
                let kubelet = self.kubelet.path().display().to_string();
                arguments.push(["--kubelet-dir".to_owned(), kubelet]);
                arguments.extend(placement.map(|it| ["--placement".to_owned(), it.to_owned()]));
            }
            Verb::Uninstall => {
                call = call.argument("uninstall");
                arguments.push(["--cni-cache-dir".to_owned(), path("results")]);
                arguments.push(["--multus-dir".to_owned(), path("multus")]);
            }
        }
        for argument in arguments.concat() {
            call = call.argument(&argument);
        }
        call
    }

    /// Installs without a fault.
    #[track_caller]
    pub(super) fn install(&mut self) {
        let outcome = self.call(Verb::Install).run();
        assert!(outcome.status.success(), "{outcome}");
        let lacking = self.lacking("install before it");
        assert!(lacking.is_empty(), "{lacking:#?}");
    }

    /// If the entry's place is the directory, installs with the entry in the list. The next `install` moves the entry
    /// into the directory.
    #[track_caller]
    fn put_into_list(&self) {
        if self.placement.is_some() {
            let outcome = self.call_with(Verb::Install, Some("list")).run();
            assert!(outcome.status.success(), "{outcome}");
        }
    }

    #[track_caller]
    pub(super) fn traced(&mut self, fault: Option<Fault>) -> (End, Report) {
        let report = self.machine.path("report");
        let call = self.call(self.verb);
        let outcome = tracer::traced(call, &self.injector, fault, &report).run();
        let end = End::of(&outcome);
        // compares before the power loss, which may remove unsynced data
        self.lacking = match (self.verb, &end) {
            (Verb::Install, End::Done(_)) => self.lacking("it succeeded"),
            _ => vec![],
        };
        (end, tracer::report(&report))
    }

    fn left(&self, when: &str) -> Vec<String> {
        let is_others = |path: &Path| (self.is_others)(&self.machine, path);
        let left = files(&self.machine).differences(&self.before, &is_others);
        left.into_iter().map(|it| format!("{when}: {it}")).collect()
    }

    /// Returns the differences from the first `install`, which had no fault.
    fn lacking(&mut self, when: &str) -> Vec<String> {
        let files = files(&self.machine);
        let installed = self.installed.get_or_insert_with(|| files.clone());
        let is_others = |path: &Path| (self.is_others)(&self.machine, path);
        let lacking = files.differences(installed, &is_others);
        let lines = lacking.into_iter();
        lines.map(|it| format!("{when}: {it}")).collect()
    }
}

fn files(machine: &Machine) -> Files {
    let paths = SEEN.map(|below| machine.path(below).display().to_string());
    without_times(Files::below(&paths.each_ref().map(String::as_str)))
}

impl Story for Programs {
    fn name(&self) -> &'static str {
        match (self.verb, self.placement) {
            (Verb::Install, None) => "install",
            (Verb::Install, Some(_)) => "install into a directory",
            (Verb::Uninstall, None) => "uninstall",
            (Verb::Uninstall, Some(_)) => "uninstall of a directory",
        }
    }

    fn run(&mut self, fault: Option<Fault>) -> (End, Report) {
        match self.verb {
            Verb::Install => self.put_into_list(),
            Verb::Uninstall => self.install(),
        }
        self.traced(fault)
    }

    /// Runs `install` in every second turn, and then `uninstall`. Returns a sentence for each failed call and each
    /// difference.
    fn put_right(&mut self, end: &End, turn: usize) -> Vec<String> {
        let mut left = mem::take(&mut self.lacking);
        if let (Verb::Uninstall, End::Done(_)) = (self.verb, end) {
            left.extend(self.left("it succeeded"));
        }
        if turn % 2 == 1 {
            left.extend(must_succeed("install", &self.call(Verb::Install).run()));
            left.extend(self.lacking("after install"));
        }
        left.extend(must_succeed("uninstall", &self.call(Verb::Uninstall).run()));
        left.extend(self.left("in the end"));
        left
    }
}
