// SPDX-License-Identifier: Apache-2.0
//! Files that `rdma-device-plugin` writes while it runs: files for `rdma-cni`, CDI files, device information, the entry
//! in the network's list, a container's allocation, and the container's files before its start. After each fault, a new
//! daemon must write the same files.

use super::story::{End, Story, without_times};
use crate::{
    Daemon, Files, Machine, disk,
    kubelet::{
        DeviceManager,
        pod_resources::{PodResourcesServer, pod},
    },
    machine::Nic,
    tracer::{self, Fault, Report},
    wait::{self, TIMEOUT},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;
use std::{
    fs::{self, Permissions},
    mem,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const NICS: [Nic<'_>; 2] = [
    Nic {
        address: "0000:3b:00.0",
        rdma: "mlx5_0",
        netdev: "ens1",
        numa_node: 0,
        number: 0,
    },
    Nic {
        address: "0000:af:00.0",
        rdma: "mlx5_1",
        netdev: "ens2",
        numa_node: 1,
        number: 1,
    },
];

const LIST: &str = r#"{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"flannel"}]}"#;

const LIST_FILE: &str = "net.d/10-flannel.conflist";

/// Directories to which the daemon may write.
const WRITTEN: [&str; 5] = ["state", "cdi", "device-info", "net.d", "bin"];

/// Files and directories for a container: settings of libraries, its ids, rails of its pod.
const CONTAINER_FILES: [&str; 3] = [
    "state/containers",
    "state/containers.json",
    "cdi/rdma-device-plugin-container.json",
];

/// Ids of the container in each resource.
const GIVEN: [(&str, &str); 2] = [("rdma/hca", "3"), ("rdma/nic", "0000:af:00.0")];

/// Additional time for a daemon with an injected fault. The time limit is the duration of the longest run without a
/// fault, plus this time.
const LIMIT: Duration = Duration::from_secs(3);

/// Stand-ins for the parts of kubelet with which the daemon communicates.
struct Kubelet {
    devices: DeviceManager,
    _pods: PodResourcesServer,
}

impl Kubelet {
    /// Starts the stand-ins. The pod-resources service lists a container with the ids of [`GIVEN`].
    #[track_caller]
    fn started(directory: &Path) -> Self {
        let pods = PodResourcesServer::start(&directory.join("pod-resources/kubelet.sock"));
        let [hca, nic] = GIVEN.map(|(resource, id)| (resource, [id]));
        pods.set_pods(&[pod(
            "default",
            "trainer",
            &[&[(hca.0, &hca.1), (nic.0, &nic.1)]],
        )]);
        Self {
            devices: DeviceManager::started(directory),
            _pods: pods,
        }
    }

    /// Calls Allocate and then PreStartContainer for the container's ids. Returns true if all calls succeed.
    #[track_caller]
    fn starts_container(&self) -> bool {
        let ids = GIVEN.map(|(resource, id)| (resource, [id.to_owned()]));
        let mut given = ids.iter();
        let mut ready = ids.iter();
        given.all(|(resource, ids)| self.devices.ask_for(resource, &[ids]).is_ok())
            && ready.all(|(resource, ids)| self.devices.before_start(resource, ids).is_ok())
    }
}

/// A node whose daemon meets faults.
#[derive(Debug)]
pub struct Writes {
    machine: Machine,
    program: PathBuf,
    injector: PathBuf,
    /// Two sets of files after a run without a fault: all files, and the files of [`CONTAINER_FILES`].
    reference: Option<[Files; 2]>,
    /// Differences in the files of [`CONTAINER_FILES`], after the last daemon prepared a container.
    container_differences: Vec<String>,
    /// Duration of the longest run without a fault.
    longest: Duration,
}

impl Writes {
    /// Makes a node. `programs` are `rdma-device-plugin`, whose directory has the plugins, and the injector.
    #[track_caller]
    pub fn new([program, injector]: [PathBuf; 2]) -> Self {
        let machine = Machine::with(&NICS);
        let configuration = format!(
            r#"{{"cdi":true,"resources":[
                {{"name":"rdma/hca","kind":"shared","count":8,"devices":[{{"rdma":"mlx5_0"}}],
                 "environment":["rails","nccl","ucx"]}},
                {{"name":"rdma/nic","kind":"exclusive","devices":[{{"rdma":"mlx5_1"}}]}}
            ],"chain":{{"confDir":{:?},"plugin":{{"resources":["rdma/hca"]}}}}}}"#,
            machine.path("net.d")
        );
        machine.configure(&configuration);
        Self {
            machine,
            program,
            injector,
            reference: None,
            container_differences: vec![],
            longest: Duration::ZERO,
        }
    }

    /// Installs the plugins without their entry in the list, as if a user had just replaced the list. Also writes
    /// device information of a NIC that was removed.
    #[track_caller]
    fn prepare(&self) -> Kubelet {
        let at = |below: &str| self.machine.path(below);
        for directory in WRITTEN.iter().chain(&["kubelet"]) {
            let _ = fs::remove_dir_all(at(directory));
        }
        for directory in ["net.d", "bin", "cdi", "device-info"] {
            fs::create_dir_all(at(directory)).expect("a directory");
        }
        self.machine.write("bin/flannel", "#!/bin/sh\n");
        let executable = Permissions::from_mode(0o755);
        fs::set_permissions(at("bin/flannel"), executable).expect("a mode");
        self.machine.write(LIST_FILE, LIST);
        let kubelet = Kubelet::started(&at("kubelet"));
        let mut install = Command::new(&self.program);
        install.env_clear().arg("install");
        for (flag, path) in [
            ("--cni-bin-dir", at("bin")),
            ("--config", at("etc/config.json")),
            ("--state-dir", at("state")),
            ("--kubelet-dir", at("kubelet")),
            ("--from", self.program.parent().expect("a directory").into()),
        ] {
            install.arg(flag).arg(path);
        }
        let output = install.output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        self.machine.write(LIST_FILE, LIST);
        let gone = "device-info/rdma-nic-0000:5e:00.0-device.json";
        self.machine.write(gone, "{}\n");
        let record = json!({"files": [at(gone)]}).to_string();
        self.machine.write("state/device-info.json", &record);
        disk::settle();
        kubelet
    }

    /// Returns the command of the daemon on this node.
    fn daemon(&self) -> Command {
        let mut command = self.machine.command(&self.program);
        let device_info = self.machine.path("device-info");
        command.arg("--device-info").arg(device_info);
        command.args(["--metrics-address", "127.0.0.1:0"]);
        command
    }

    fn is_in_list(&self) -> bool {
        let list = fs::read_to_string(self.machine.path(LIST_FILE));
        list.is_ok_and(|it| it.contains("\"rdma-cni\""))
    }

    fn files<const N: usize>(&self, below: [&str; N]) -> Files {
        let paths = below.map(|it| self.machine.path(it).display().to_string());
        without_times(Files::below(&paths.each_ref().map(String::as_str)))
    }

    /// Returns true when the daemon has advertised both resources, has written the entry, and has answered the requests
    /// for a container. Repeats these requests once after an error. Returns false at the time limit, and when `is_over`
    /// returns true before.
    fn has_all(
        &self,
        kubelet: &Kubelet,
        limit: Duration,
        is_over: &mut dyn FnMut() -> bool,
    ) -> bool {
        let is_listed = |resource: &str| {
            kubelet
                .devices
                .resource(resource)
                .is_some_and(|it| !it.healthy().is_empty() && it.streams == 1)
        };
        let mut over = false;
        let came = wait::within(limit, || {
            over = is_over();
            over || is_listed("rdma/hca") && is_listed("rdma/nic") && self.is_in_list()
        });
        came && !over && (kubelet.starts_container() || !is_over() && kubelet.starts_container())
    }
}

/// Returns the program that the injector has started.
fn tracee(injector: &Child) -> Option<Pid> {
    let id = injector.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
    children
        .split_whitespace()
        .next()?
        .parse()
        .ok()
        .map(Pid::from_raw)
}

impl Story for Writes {
    fn name(&self) -> &'static str {
        "daemon"
    }

    fn run(&mut self, fault: Option<Fault>) -> (End, Report) {
        let kubelet = self.prepare();
        let report = self.machine.path("report");
        let of = self.daemon();
        let mut command = Command::new(&self.injector);
        command.arg(format!("--report={}", report.display()));
        command.args(fault.map(|fault| format!("--{}", fault.argument())));
        command.arg("--").arg(of.get_program()).args(of.get_args());
        command
            .env_clear()
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let mut injector = command.spawn().expect("the injector");
        let limit = match fault {
            Some(_) => LIMIT + self.longest,
            None => TIMEOUT,
        };
        let start = Instant::now();
        let mut is_over = || injector.try_wait().expect("a status").is_some();
        let has_all = self.has_all(&kubelet, limit, &mut is_over);
        if fault.is_none() {
            self.longest = self.longest.max(start.elapsed());
        }
        if let Some(daemon) = tracee(&injector) {
            // an error is ignored, because the program may have ended
            let _ = kill(daemon, Signal::SIGTERM);
        }
        let ended = wait::within(limit, || injector.try_wait().expect("a status").is_some());
        if !ended {
            tracee(&injector).map(|it| kill(it, Signal::SIGKILL));
        }
        let status = injector.wait().expect("a status");
        self.container_differences = match &self.reference {
            Some([_, expected]) if has_all => self
                .files(CONTAINER_FILES)
                .differences(expected, &|_| false),
            _ => vec![],
        };
        let end = match has_all {
            true => End::Done(String::new()),
            false if status.code().is_none() => End::Killed,
            false => End::Refused(0, format!("{status}")),
        };
        (end, tracer::report(&report))
    }

    fn recordings(&self) -> usize {
        3
    }

    /// Starts a new daemon. It must reach the state of a run without a fault.
    fn put_right(&mut self, _: &End, _: usize) -> Vec<String> {
        let kubelet = Kubelet::started(&self.machine.path("kubelet"));
        let daemon = Daemon::start(&mut self.daemon());
        let differences = mem::take(&mut self.container_differences).into_iter();
        let mut left: Vec<String> = differences
            .map(|it| format!("a container can start: {it}"))
            .collect();
        if !self.has_all(&kubelet, TIMEOUT, &mut || false) {
            left.push("the next daemon does not write the same files".to_owned());
        }
        let (status, _) = daemon.end(Signal::SIGTERM);
        if !status.success() {
            left.push(format!("the next daemon ended with {status}"));
        }
        let files = self.files(WRITTEN);
        match &self.reference {
            None => self.reference = Some([files, self.files(CONTAINER_FILES)]),
            Some([reference, _]) => left.extend(files.differences(reference, &|_| false)),
        }
        left
    }
}
