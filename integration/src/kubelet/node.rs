// SPDX-License-Identifier: Apache-2.0
//! A node with all of it: kubelet's part, the daemon on this machine's own devices, and what the
//! chain is configured with.

use super::{
    Allocation, DeviceManager, Wish,
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

/// The node.
#[derive(Debug)]
pub struct Node {
    /// Kubelet's device manager.
    pub kubelet: DeviceManager,
    /// The daemon.
    pub daemon: Daemon,
    pod_resources: PodResourcesServer,
    place: Place,
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, String)>,
    /// The daemon's, and what starts it.
    program: Vec<OsString>,
}

/// Place of the node's files.
#[derive(Debug)]
enum Place {
    /// A directory of its own.
    Temporary(TempDir),
    /// The usual directories of nodes: state that outlives the boot is in `/var/lib`.
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
            // without the slash that nothing appended leaves
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

    /// Does the same as `start`, with all files where nodes have them, and with what an earlier boot left there.
    #[track_caller]
    pub fn start_on_disk(configuration: &str) -> Self {
        Self::start_with(configuration, Place::Usual, None, None)
    }

    /// Does the same as `start`, with a state directory that outlasts the node.
    #[track_caller]
    pub fn start_with_state(configuration: &str, state: &Path) -> Self {
        Self::start_with(configuration, temporary(), Some(state), None)
    }

    /// Does the same as `start_with_state`, with a daemon that may not enter namespaces, as in the manifests.
    #[track_caller]
    pub fn start_confined(configuration: &str, state: &Path) -> Self {
        let mut node = Self::start_with(configuration, temporary(), Some(state), None);
        let confined = ["setpriv", "--bounding-set=-sys_admin", "--"];
        node.program.splice(0..0, confined.map(OsString::from));
        node.kill_the_daemon();
        node
    }

    /// Does the same as `start_with_state`, beside an API server.
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

    /// Kills the daemon, and starts it as it was started before.
    #[track_caller]
    pub fn kill_the_daemon(&mut self) {
        self.daemon.kill();
        self.daemon = started(&self.program, &self.arguments, &self.environment);
    }

    /// Ends the daemon; how it ended, and how long that took.
    #[track_caller]
    pub fn end(self, signal: Signal) -> (ExitStatus, Duration) {
        self.daemon.end(signal)
    }

    /// Allocates as kubelet does before it has a pod's sandbox made; its pod-resources report the allocation from then
    /// on.
    #[track_caller]
    pub fn allocate(&self, wish: &Wish) -> Allocation {
        let allocation = self.kubelet.allocate(wish);
        let allocation = allocation.unwrap_or_else(|status| panic!("{wish:?}: {status}"));
        self.pod_resources.set_pods(&self.kubelet.pod_resources());
        allocation
    }

    /// Calls the plugins as kubelet does before it starts the containers of a pod, whose sandbox exists: each may
    /// start.
    #[track_caller]
    pub fn may_start(&self, pod: &str) {
        let mut allocations = self.kubelet.allocations();
        allocations.retain(|it| it.pod.1 == pod);
        assert!(!allocations.is_empty(), "{pod} has nothing");
        for it in allocations {
            let told = self.kubelet.before_start(&it.resource, &it.ids);
            told.unwrap_or_else(|status| panic!("{pod}, {}: {status}", it.container));
        }
    }

    /// Adds a pod without requests to kubelet.
    pub fn knows(&self, pod: &str) {
        let mut pods = self.kubelet.pod_resources();
        pods.push(pod_resources::pod("default", pod, &[&[]]));
        self.pod_resources.set_pods(&pods);
    }

    /// Kubelet has a pod with devices by claims: driver, device and CDI name of each.
    pub fn claims(&self, pod: &str, devices: &[(&str, &str, &str)]) {
        let pod = pod_resources::pod("default", pod, &[]);
        self.pod_resources
            .set_pods(&[pod_resources::claiming(pod, devices)]);
    }

    /// The pod is gone.
    pub fn free(&self, pod: &str) {
        self.kubelet.free(pod);
        self.pod_resources.set_pods(&self.kubelet.pod_resources());
    }

    /// `rdma-cni`'s entry in a conflist: what is attached is what kubelet says.
    pub fn chain(&self, resources: &[&str]) -> Value {
        json!({
            "type": "rdma-cni",
            "resources": resources,
            "podResourcesSocket": self.pod_resources.socket(),
            "stateDir": self.path("state"),
        })
    }

    /// `CNI_PATH`: where the plugins under test and Debian's are.
    pub fn cni_path(&self) -> String {
        plugin::cni_path(&rdma_cni(), &[])
    }

    /// A file or directory of the node.
    pub fn path(&self, below: &str) -> PathBuf {
        self.place.path(below)
    }

    /// The device nodes of a device's entry in the CDI file: name, major, minor.
    #[track_caller]
    pub fn cdi_nodes(&self, device: &str) -> Vec<(String, u64, u64)> {
        let nodes = self.cdi_nodes_if_there(device);
        nodes.unwrap_or_else(|| panic!("{device} is not in the CDI file"))
    }

    /// Does the same as `cdi_nodes`. None: the device has no entry, as one that is not there.
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

    /// The value of the first metric that is called `name` and has all of `labels`.
    #[track_caller]
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let text = self.metrics();
        let has = |line: &&str| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| {
                rest.starts_with(['{', ' '])
                    && labels
                        .iter()
                        .all(|(key, value)| rest.contains(&format!("{key}=\"{value}\"")))
            })
        };
        let line = text.lines().find(has)?;
        line.rsplit(' ').next()?.parse().ok()
    }
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
