// SPDX-License-Identifier: Apache-2.0
//! ADD, DEL and GC of `rdma-cni` for one pod. After each fault comes DEL. In turn, no call, GC, or ADD and DEL of
//! another pod precedes this DEL.

mod failed_add;

use super::story::{End, Story, must_succeed};
use crate::{
    Files, Invocation, Netns, Node, Outcome, Snapshot,
    tracer::{self, Fault, Report},
    wait::TIMEOUT,
};
use serde_json::{Value, json};
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;

/// Time limit for a traced call. In the lab, where each stop is expensive, a call took 15 s, and more while builds ran.
const TRACED: Duration = Duration::from_secs(240);

/// Files that exist although no pod has a device: locks, the secret of stable addresses, and the position of the round
/// robin.
const LASTING: [&str; 6] = [
    "lock",
    // lock of the rails files
    ".lock",
    ".rdma-ipam.secret",
    ".rdma-ipam.secret.lock",
    "last_reserved_ip.0",
    "last_reserved_ip.1",
];

/// Returns true if a file or directory may exist although no pod has a device or an address.
pub(super) fn is_lasting(path: &Path) -> bool {
    let name = path.file_name().and_then(|it| it.to_str());
    // a directory that does not belong to a pod
    let is_directory = path.is_dir() && name.is_some_and(|it| !["a", "b"].contains(&it));
    is_directory || name.is_some_and(|it| LASTING.contains(&it))
}

/// Way in which a node's rails get into a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The netdevs move into the pod with their addresses.
    Move,
    /// The pod gets children of the netdevs, with addresses of `rdma-ipam`.
    Share,
    /// `Share` with a wrapper in place of `rdma-ipam`. `rdma-cni` starts the wrapper as a separate program.
    ShareByWrapper,
}

/// Makes a pod's namespace. Returns the namespace, and its state without a device.
#[track_caller]
fn pod(label: &str) -> (Netns, Snapshot) {
    let pod = Netns::new(label);
    pod.ip("link set dev lo up");
    let bare = Snapshot::of(&pod);
    (pod, bare)
}

/// Makes a directory below `directory` with a wrapper: a script that has the name of `program` and executes it. Some
/// users install such wrappers in place of plugins.
#[track_caller]
fn wrapper(program: &Path, directory: &Path) -> PathBuf {
    let place = directory.join("in-front");
    fs::create_dir(&place).expect("a directory");
    let file = place.join(program.file_name().expect("a program has a name"));
    // bash: dash would treat a script that it cannot read as an empty one, which succeeds
    let script = format!("#!/bin/bash\nexec {} \"$@\"\n", program.display());
    fs::write(&file, script).expect("a program");
    fs::set_permissions(&file, Permissions::from_mode(0o755)).expect("it can be run");
    place
}

/// A command of `rdma-cni`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// ADD of the pod `a`.
    Add,
    /// DEL of the pod `a`, which has devices.
    Del,
    /// GC without the pod `a`, which has devices.
    Gc,
}

/// A node, and the attachments of its pods.
#[derive(Debug)]
pub struct Attachments {
    /// A node that this value has made and can replace, and the mode of its rails. `None`: the caller's node.
    node: Option<(Node, Mode)>,
    host: Netns,
    plugin: PathBuf,
    injector: PathBuf,
    cni_path: String,
    configuration: Value,
    /// Directories that only the plugins under test use: `stateDir` and the leases. The test removes them before each
    /// run.
    directories: Vec<PathBuf>,
    host_before: Snapshot,
    /// The pods `a` and `b`.
    pods: [(Netns, Snapshot); 2],
    reports: TempDir,
    booted: Option<Booted>,
}

/// State of a node that has lost power and booted again.
#[derive(Debug)]
struct Booted {
    /// The node, which has the present host.
    _node: Node,
    /// File with a boot id that differs from the records' boot id.
    boot_id: PathBuf,
    /// Path that the network namespace of the pod `a` had before the boot.
    ended: PathBuf,
}

impl Attachments {
    /// Makes a value for `host`. Each run must restore the host's present state. `programs` are `rdma-cni` and the
    /// injector.
    #[track_caller]
    pub fn new(
        host: Netns,
        [plugin, injector]: [PathBuf; 2],
        cni_path: String,
        configuration: Value,
        directories: Vec<PathBuf>,
    ) -> Self {
        Self {
            node: None,
            host_before: Snapshot::of(&host),
            host,
            plugin,
            injector,
            cni_path,
            configuration,
            directories,
            pods: [pod("a"), pod("b")],
            reports: TempDir::new().expect("a directory"),
            booted: None,
        }
    }

    /// Makes a node with two rails.
    #[track_caller]
    pub fn of_node(mode: Mode, programs: [PathBuf; 2]) -> Self {
        let node = Node::furnished();
        let leases = node.directory().join("leases");
        let mut configuration = node.configuration(&["eth1", "eth2"]);
        let mut path = node.cni_path();
        if mode == Mode::ShareByWrapper {
            let own = programs[0].with_file_name("rdma-ipam");
            path = format!("{}:{path}", wrapper(&own, node.directory()).display());
        }
        match mode {
            Mode::Move => configuration["mode"] = "move".into(),
            Mode::Share | Mode::ShareByWrapper => {
                configuration["mode"] = "share".into();
                configuration["ipam"] = json!({
                    "type": "rdma-ipam", "dataDir": leases,
                    "ranges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd00:9::/64"}]],
                });
            }
        }
        let directories = vec![node.state(), leases];
        let host = Netns::existing(node.host.path());
        let mut of = Self::new(host, programs, path, configuration, directories);
        of.node = Some((node, mode));
        of
    }

    /// Replaces the host as a power loss and a boot do: the netdevs are as after the first boot, the pods have ended,
    /// and the files on the disk remain.
    #[track_caller]
    pub fn boot(&mut self) {
        let node = Node::furnished();
        self.host = Netns::existing(node.host.path());
        self.host_before = Snapshot::of(&self.host);
        let ended = self.pods[0].0.path().to_owned();
        self.pods = [pod("a"), pod("b")];
        let boot_id = self.reports.path().join("boot_id");
        fs::write(&boot_id, "0b007ed0-0000-4000-8000-000000000000\n").expect("a file");
        self.booted = Some(Booted {
            _node: node,
            boot_id,
            ended,
        });
    }

    /// Makes a new node after a difference was reported. A caller's node remains: DEL restores the devices of its pods,
    /// and new pods replace these pods.
    #[track_caller]
    pub fn start_anew(&mut self) {
        match &self.node {
            Some((_, mode)) => {
                let programs = [self.plugin.clone(), self.injector.clone()];
                *self = Self::of_node(*mode, programs);
            }
            None => {
                self.bring_home();
                if !self.differences(&[]).is_empty() {
                    self.host_before = Snapshot::of(&self.host);
                }
                self.pods = [pod("a"), pod("b")];
            }
        }
    }

    /// Runs DEL for both pods if a record exists, because the next run removes the records.
    fn bring_home(&self) {
        let files = fs::read_dir(self.directories[0].join("attachments/net"));
        let mut names = files.into_iter().flatten().flatten().map(|it| it.path());
        if names.any(|it| it.extension().is_some_and(|it| it == "json")) {
            for pod in [0, 1] {
                let outcome = self.call("DEL", pod).run();
                if !outcome.status.success() {
                    eprintln!("devices of a pod are not restored to the host: {outcome}");
                }
            }
        }
    }

    /// Removes state and leases. Before that, restores the devices of pods on a caller's node.
    #[track_caller]
    pub fn clear(&self) {
        if self.node.is_none() {
            self.bring_home();
        }
        for directory in &self.directories {
            let _ = fs::remove_dir_all(directory);
        }
    }

    /// Returns `command` of `rdma-cni` for a pod. Pod `a` is 0, pod `b` is 1.
    pub fn call(&self, command: &str, pod: usize) -> Invocation<'_> {
        let netns = match &self.booted {
            Some(Booted { ended, .. }) if pod == 0 => ended,
            _ => self.pods[pod].0.path(),
        };
        self.bare()
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", ["a", "b"][pod])
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", Path::new(&self.cni_path))
            .input(&self.configuration)
    }

    /// Returns a call of `rdma-cni` in the host's namespace and with the present boot id.
    fn bare(&self) -> Invocation<'_> {
        let call = Invocation::new(&self.host, &self.plugin);
        let Some(Booted { boot_id, .. }) = &self.booted else {
            return call;
        };
        // the script itself makes the mount, because `ip netns exec` gives each program a separate mount namespace
        let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
        let boot_id = boot_id.display().to_string();
        let arguments = ["-c".to_owned(), script.to_owned(), boot_id];
        call.by("/bin/sh".as_ref(), arguments.into())
    }

    /// Returns the first call of a story with `verb`: before ADD no pod has a device, before other verbs the pod `a`
    /// has devices.
    #[track_caller]
    pub(super) fn first(&self, verb: Verb) -> Invocation<'_> {
        self.clear();
        if verb != Verb::Add {
            self.call("ADD", 0).run().result();
        }
        match verb {
            Verb::Add => self.call("ADD", 0),
            Verb::Del => self.call("DEL", 0),
            Verb::Gc => self.gc(),
        }
    }

    /// Returns GC with an empty list of valid attachments.
    pub fn gc(&self) -> Invocation<'_> {
        let mut configuration = self.configuration.clone();
        configuration["cni.dev/valid-attachments"] = json!([]);
        let call = self.bare().env("CNI_COMMAND", "GC");
        call.env("CNI_PATH", &self.cni_path).input(&configuration)
    }

    /// Runs CHECK of the pod `a` with the result of its ADD.
    fn check(&self, result: &str) -> Outcome {
        let mut configuration = self.configuration.clone();
        configuration["prevResult"] = serde_json::from_str(result).unwrap_or_default();
        self.call("CHECK", 0).input(&configuration).run()
    }

    /// Runs a call with faults. Returns its end and the injector's report.
    #[track_caller]
    pub fn traced(
        &self,
        call: Invocation<'_>,
        faults: impl IntoIterator<Item = Fault>,
    ) -> (End, Report) {
        let report = self.reports.path().join("report");
        let call = call.within(TRACED);
        let outcome = tracer::traced(call, &self.injector, faults, &report).run();
        let end = End::of(&outcome);
        if end == (End::Done(String::new())) && !report.exists() {
            panic!("the injector did not run: {outcome}");
        }
        (end, tracer::report(&report))
    }

    /// Returns the differences from a node on which no pod has had a device: on the host, in the given pods, and in the
    /// directories.
    pub fn differences(&self, pods: &[usize]) -> Vec<String> {
        let mut left = self.in_namespaces(pods, &|difference| difference);
        left.extend(self.files_but(&is_lasting));
        left
    }

    /// Returns the differences on the host and in the given pods, reduced by `counted`. Waits for late changes by the
    /// kernel, in each namespace up to a time limit.
    fn in_namespaces(&self, pods: &[usize], counted: &dyn Fn(String) -> String) -> Vec<String> {
        let mut left = vec![];
        let mut namespaces = vec![("host", &self.host, &self.host_before)];
        for number in pods {
            let (pod, bare) = &self.pods[*number];
            namespaces.push((["pod a", "pod b"][*number], pod, bare));
        }
        for (name, netns, before) in namespaces {
            let difference = before.difference_within(TIMEOUT, netns, counted);
            if !difference.is_empty() {
                left.push(format!("{name}: {difference}"));
            }
        }
        left
    }

    /// Returns true if the record of the pod `a` is in the phase `attached`, in which the pod keeps its devices.
    pub(super) fn is_attached(&self) -> bool {
        let record = self.directories[0].join("attachments/net/a@eth0.json");
        let record: Value =
            serde_json::from_slice(&fs::read(record).unwrap_or_default()).unwrap_or_default();
        record["phase"] == "attached"
    }

    /// Returns the files that should not exist when no pod has a device. Omits files for which `is_lasting` returns
    /// true.
    fn files_but(&self, is_lasting: &dyn Fn(&Path) -> bool) -> Vec<String> {
        let directories: Vec<&str> = self
            .directories
            .iter()
            .filter_map(|it| it.to_str())
            .collect();
        Files::below(&directories).differences(&Files::below(&[]), is_lasting)
    }

    /// Runs ADD and DEL of the pod `b`. A running pod keeps its devices until its DEL succeeds. So if ADD answers with
    /// code 101, runs DEL of `a` and repeats ADD.
    fn other(&self) -> Vec<String> {
        let mut left = vec![];
        let mut outcome = self.call("ADD", 1).run();
        if let End::Refused(101, _) = End::of(&outcome) {
            left.extend(must_succeed("DEL", &self.call("DEL", 0).run()));
            outcome = self.call("ADD", 1).run();
        }
        left.extend(must_succeed("another pod's ADD", &outcome));
        left.extend(must_succeed("its DEL", &self.call("DEL", 1).run()));
        left
    }

    /// Makes the calls after a verb with a fault. The last call is DEL of the pod `a`. Before this DEL, `turn` selects
    /// no call, GC, or ADD and DEL of the pod `b`. `holds`: the pod `a` may still have its devices. Returns a sentence
    /// for each failed call and each difference.
    pub fn restore(&self, turn: usize, holds: bool) -> Vec<String> {
        let prefixed = |when: &str, left: Vec<String>| -> Vec<String> {
            left.into_iter().map(|it| format!("{when}: {it}")).collect()
        };
        let mut left = vec![];
        match turn % 3 {
            0 => {}
            1 => {
                left.extend(must_succeed("GC", &self.gc().run()));
                left.extend(prefixed("after GC", self.differences(&[0])));
            }
            _ => {
                left.extend(self.other());
                if !holds {
                    left.extend(prefixed(
                        "after another pod's ADD and DEL",
                        self.differences(&[1]),
                    ));
                }
            }
        }
        left.extend(must_succeed("DEL", &self.call("DEL", 0).run()));
        left.extend(prefixed("in the end", self.differences(&[0])));
        left
    }
}

/// The story of one verb.
#[derive(Debug)]
pub struct OfVerb<'a> {
    /// Name for reports.
    pub name: &'static str,
    /// The verb.
    pub verb: Verb,
    /// The node.
    pub of: &'a mut Attachments,
}

impl Story for OfVerb<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn run(&mut self, fault: Option<Fault>) -> (End, Report) {
        self.of.traced(self.of.first(self.verb), fault)
    }

    fn start_anew(&mut self) {
        self.of.start_anew();
    }

    fn put_right(&mut self, end: &End, turn: usize) -> Vec<String> {
        let mut left = vec![];
        let mut holds = self.verb != Verb::Add;
        match (self.verb, end) {
            (Verb::Add, End::Refused(..)) => left.extend(self.of.left_by_error(end)),
            (Verb::Add, End::Killed) => holds = self.of.is_attached(),
            (Verb::Add, End::Done(result)) => {
                holds = true;
                let checked = self.of.check(result);
                left.extend(must_succeed("CHECK after an ADD that succeeded", &checked));
            }
            (_, End::Done(_)) => {
                holds = false;
                let at_once = self.of.differences(&[0]);
                left.extend(at_once.into_iter().map(|it| format!("it succeeded: {it}")));
            }
            _ => {}
        }
        left.extend(self.of.restore(turn, holds));
        left
    }
}
