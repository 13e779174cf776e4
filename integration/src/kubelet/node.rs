// SPDX-License-Identifier: Apache-2.0
//! A complete node: kubelet's stand-in, the daemon on this machine's own devices, and the entry of `rdma-cni`.

use super::{
    Allocation, AllocationRequest, DeviceManager,
    pod_resources::{self, PodResourcesServer},
};
use crate::{
    ApiServer, Daemon,
    daemon::rdma_device_plugin,
    plugin::{self, rdma_cni},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};
use tempfile::TempDir;

/// A node with stand-ins for parts of kubelet, and a running daemon.
#[derive(Debug)]
pub struct Node {
    /// Stand-in for kubelet's device manager.
    pub kubelet: DeviceManager,
    /// The running daemon.
    pub daemon: Daemon,
    pod_resources: PodResourcesServer,
    place: Place,
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, String)>,
    /// Command line that starts the daemon, with the daemon's path.
    program: Vec<OsString>,
}

/// The location of the node's files.
#[derive(Debug)]
enum Place {
    Temporary(TempDir),
    /// The usual directories of nodes. State that survives a boot is in `/var/lib`.
    Usual,
}

impl Place {
    fn path(&self, below: &str) -> PathBuf {
        let Self::Temporary(directory) = self else {
            let (first, rest) = below.split_once('/').unwrap_or((below, ""));
            let usual = match first {
                "kubelet" => Path::new("/var/lib/kubelet").join(rest),
                "cdi" => Path::new("/var/run/cdi").join(rest),
                "state" => Path::new("/var/lib/cni/rdma-cni").join(rest),
                _ => Path::new("/var/lib/cni").join(below),
            };
            // removes the final slash that an empty `rest` leaves
            return usual.components().collect();
        };
        directory.path().join(below)
    }
}

impl Node {
    /// Starts a node whose daemon has the configuration file `configuration`.
    #[track_caller]
    pub fn start(configuration: &str) -> Self {
        Self::start_with(configuration, temporary(), None, None)
    }

    /// Starts a node like [`Self::start`], with all files in the usual directories of nodes. They may have files of an
    /// earlier boot.
    #[track_caller]
    pub fn start_on_disk(configuration: &str) -> Self {
        Self::start_with(configuration, Place::Usual, None, None)
    }

    /// Starts a node like [`Self::start`], with a state directory that exists longer than the node.
    #[track_caller]
    pub fn start_with_state(configuration: &str, state: &Path) -> Self {
        Self::start_with(configuration, temporary(), Some(state), None)
    }

    /// Starts a node like [`Self::start_with_state`]. The daemon may not enter namespaces, as in the manifests.
    #[track_caller]
    pub fn start_confined(configuration: &str, state: &Path) -> Self {
        let mut node = Self::start_with(configuration, temporary(), Some(state), None);
        let confined = ["setpriv", "--bounding-set=-sys_admin", "--"];
        node.program.splice(0..0, confined.map(OsString::from));
        node.kill_the_daemon();
        node
    }

    /// Starts a node like [`Self::start_with_state`], with an API server.
    #[track_caller]
    pub fn start_in_cluster(configuration: &str, state: &Path, api: &ApiServer) -> Self {
        Self::start_with(configuration, temporary(), Some(state), Some(api))
    }

    #[track_caller]
    fn start_with(
        configuration: &str,
        place: Place,
        state: Option<&Path>,
        api: Option<&ApiServer>,
    ) -> Self {
        let at = |below: &str| place.path(below);
        fs::create_dir_all(at("kubelet/pod-resources")).expect("a directory");
        let pod_resources = PodResourcesServer::start(&at("kubelet/pod-resources/kubelet.sock"));
        let kubelet = DeviceManager::started(&at("kubelet"));
        fs::write(at("config.json"), configuration).expect("the configuration");
        let state = state.map_or_else(|| at("state"), Path::to_owned);
        let mut arguments: Vec<OsString> = vec![];
        for (flag, path) in [
            ("--config", at("config.json")),
            ("--kubelet-dir", at("kubelet")),
            ("--cdi-dir", at("cdi")),
            ("--state-dir", state),
        ] {
            arguments.extend([flag.into(), path.into()]);
        }
        let rest = ["--metrics-address", "127.0.0.1:0", "--log-level", "debug"];
        arguments.extend(rest.map(OsString::from));
        let mut environment = vec![];
        if let Some(api) = api {
            arguments.extend(["--service-account-dir".into(), api.account().into()]);
            environment.extend(api.environment());
        }
        let program = vec![rdma_device_plugin().into()];
        Self {
            kubelet,
            daemon: started(&program, &arguments, &environment),
            pod_resources,
            place,
            arguments,
            environment,
            program,
        }
    }

    /// Kills the daemon, and starts it again by the same command.
    #[track_caller]
    pub fn kill_the_daemon(&mut self) {
        self.daemon.kill();
        self.daemon = started(&self.program, &self.arguments, &self.environment);
    }

    /// Ends the daemon. Returns its exit status, and the time until it ended.
    #[track_caller]
    pub fn end(self, signal: Signal) -> (ExitStatus, Duration) {
        self.daemon.end(signal)
    }

    /// Allocates, as kubelet does before it requests a pod's sandbox. Afterwards pod-resources reports the allocation.
    #[track_caller]
    pub fn allocate(&self, request: &AllocationRequest) -> Allocation {
        let allocation = self.kubelet.allocate(request);
        let allocation = allocation.unwrap_or_else(|status| panic!("{request:?}: {status}"));
        self.pod_resources.set_pods(&self.kubelet.pod_resources());
        allocation
    }

    /// Calls PreStartContainer for each allocation of the pod, as kubelet does when the pod's sandbox exists. Asserts
    /// that each call succeeds.
    #[track_caller]
    pub fn may_start(&self, pod: &str) {
        let mut allocations = self.kubelet.allocations();
        allocations.retain(|it| it.pod.1 == pod);
        assert!(!allocations.is_empty(), "{pod} has nothing");
        for it in allocations {
            let response = self.kubelet.before_start(&it.resource, &it.ids);
            response.unwrap_or_else(|status| panic!("{pod}, {}: {status}", it.container));
        }
    }

    /// Adds a pod without allocations to kubelet's pod-resources.
    pub fn knows(&self, pod: &str) {
        let mut pods = self.kubelet.pod_resources();
        pods.push(pod_resources::pod("default", pod, &[&[]]));
        self.pod_resources.set_pods(&pods);
    }

    /// Replaces kubelet's pods by the pod `default/<pod>`, whose only container uses a claim. `devices` has driver,
    /// name and CDI name of each device of the claim.
    pub fn claims(&self, pod: &str, devices: &[(&str, &str, &str)]) {
        let pod = pod_resources::pod("default", pod, &[]);
        self.pod_resources
            .set_pods(&[pod_resources::claiming(pod, devices)]);
    }

    /// Removes a pod from kubelet.
    pub fn free(&self, pod: &str) {
        self.kubelet.free(pod);
        self.pod_resources.set_pods(&self.kubelet.pod_resources());
    }

    /// Returns the entry of `rdma-cni` in a conflist. By this entry each pod gets the devices that kubelet reports.
    pub fn chain(&self, resources: &[&str]) -> Value {
        json!({
            "type": "rdma-cni",
            "resources": resources,
            "podResourcesSocket": self.pod_resources.socket(),
            "stateDir": self.path("state"),
        })
    }

    /// Returns the `CNI_PATH` with the plugins under test and Debian's.
    pub fn cni_path(&self) -> String {
        plugin::cni_path(&rdma_cni(), &[])
    }

    /// Returns the path of a file or directory of the node.
    pub fn path(&self, below: &str) -> PathBuf {
        self.place.path(below)
    }

    /// Returns the device nodes in a device's entry in the CDI file: name, major, minor.
    #[track_caller]
    pub fn cdi_nodes(&self, device: &str) -> Vec<(String, u64, u64)> {
        let nodes = self.cdi_nodes_if_there(device);
        nodes.unwrap_or_else(|| panic!("{device} is not in the CDI file"))
    }

    /// Returns the device nodes like [`Self::cdi_nodes`]. Returns `None` if the device has no entry, for example
    /// because it does not exist.
    #[track_caller]
    pub fn cdi_nodes_if_there(&self, device: &str) -> Option<Vec<(String, u64, u64)>> {
        let file = self.path("cdi/rdma-device-plugin-rdma.json");
        let text = fs::read(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        let spec: Value = serde_json::from_slice(&text).expect("JSON");
        let entries = spec["devices"].as_array().expect("a list");
        let entry = entries.iter().find(|entry| entry["name"] == device)?;
        let nodes = entry["containerEdits"]["deviceNodes"].as_array();
        let nodes = nodes.expect("a list").iter().map(|node| {
            let name = node["path"]
                .as_str()
                .and_then(|path| path.rsplit('/').next());
            let number = |key: &str| node[key].as_u64().expect("a number");
            (
                name.expect("a path").to_owned(),
                number("major"),
                number("minor"),
            )
        });
        Some(nodes.collect())
    }

    /// Returns the page `/metrics`.
    #[track_caller]
    pub fn metrics(&self) -> String {
        let answer = self.daemon.get("/metrics");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }

    /// Returns the value of the first metric that has the name `name` and all of `labels`.
    #[track_caller]
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        metric(&self.metrics(), name, labels)
    }
}

/// Returns the value of the first metric in `page` that has the name `name` and all of `labels`.
pub fn metric(page: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let has = |line: &&str| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| {
            rest.starts_with(['{', ' '])
                && labels
                    .iter()
                    .all(|(key, value)| rest.contains(&format!("{key}=\"{value}\"")))
        })
    };
    let line = page.lines().find(has)?;
    line.rsplit(' ').next()?.parse().ok()
}

#[track_caller]
fn started(
    program: &[OsString],
    arguments: &[OsString],
    environment: &[(&'static str, String)],
) -> Daemon {
    let (first, rest) = program.split_first().expect("a program");
    let environment = environment.iter().map(|(name, value)| (*name, value));
    let mut command = Command::new(first);
    Daemon::start(command.args(rest).args(arguments).envs(environment))
}

#[track_caller]
fn temporary() -> Place {
    Place::Temporary(TempDir::new().expect("a temporary directory"))
}
