// SPDX-License-Identifier: Apache-2.0
//! A node whose daemon is a DaemonSet's pod from the image. All files have their usual paths on a node, and are lost
//! when the lab's guest ends.

use super::{
    ContainerRuntime, DaemonPod, Pod, PodSpec, daemon_set::Ended, manifest::Manifest, shared::HCA,
};
use crate::{
    BondedNics,
    kubelet::{AllocationRequest, DeviceManager, pod_resources::PodResourcesServer},
    netns::check,
    real_kubelet, smc, wait,
};
use serde_json::json;
use std::{
    cell::Cell,
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

pub use crate::Files;

/// Path of the conflist of the node's primary network.
pub const LIST: &str = "/etc/cni/net.d/10-pods.conflist";

/// The `stateDir` of `rdma-cni`.
pub const STATE: &str = "/var/lib/cni/rdma-cni";

/// Directories to which an installation may write.
pub const PLACES: [&str; 6] = [
    "/etc/cni",
    "/opt/cni",
    "/var/lib/cni",
    "/var/run/cdi",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet/pod-resources",
];

/// Last line of the output of a complete `uninstall --stay`.
pub const UNINSTALLED: &str = "nothing is left to remove";

/// Directories whose files remain by design. The first one has the state of the daemon and of `rdma-cni`. The others
/// have the state of IPAM plugins and of the runtime's CNI library, for the networks of earlier pods.
pub const LEFT: [&str; 3] = [STATE, "/var/lib/cni/networks", "/var/lib/cni/results"];

/// Environment variable that names the archive of this tree's image.
const IMAGE: &str = "RDMA_LAB_IMAGE";

/// Time limit for a daemon to become ready in an emulated machine.
const TO_BE_READY: Duration = Duration::from_secs(240);

/// Reason why a pod did not start.
#[derive(Debug)]
pub enum NotStarted {
    /// The daemon refused the container's start (PreStartContainer), with this message.
    Refused(String),
    /// The runtime could not create the pod, and gave this message.
    Failed(String),
}

/// A node on which the daemon can be installed.
#[derive(Debug)]
pub struct InstalledNode {
    /// The node's container runtime.
    pub runtime: ContainerRuntime,
    /// Stand-in for kubelet's device manager.
    pub kubelet: DeviceManager,
    /// The bonded NICs.
    pub nics: BondedNics,
    pod_resources: PodResourcesServer,
}

impl Default for InstalledNode {
    fn default() -> Self {
        Self::new()
    }
}

impl InstalledNode {
    /// Starts a node with a primary network and this tree's image. `rdma-cni` is not installed.
    #[track_caller]
    pub fn new() -> Self {
        clear();
        // systemd does this too: later mounts of the node propagate into containers
        check(Command::new("mount").args(["--make-rshared", "/"]));
        let nics = BondedNics::new();
        let runtime = ContainerRuntime::start_on_node();
        runtime.import(&image());
        let kubelet = Path::new(real_kubelet::DIRECTORY);
        fs::create_dir_all(kubelet.join("pod-resources")).expect("a directory");
        let pod_resources = PodResourcesServer::start(&real_kubelet::pod_resources());
        write_list(&primary("pods"));
        Self {
            kubelet: DeviceManager::started(kubelet),
            runtime,
            nics,
            pod_resources,
        }
    }

    /// Runs the manifest's pod. Returns the pod and the output of its init containers.
    #[track_caller]
    pub fn daemon_pod(&self, manifest: &Manifest, name: &str) -> (DaemonPod, String) {
        let started = self.runtime.daemon_pod(manifest, name);
        started.unwrap_or_else(|Ended { code, output }| {
            panic!("an init container of {name} ended with {code}: {output}")
        })
    }

    /// Runs the pod like [`Self::daemon_pod`], and waits until the readiness probe succeeds.
    #[track_caller]
    pub fn daemon(&self, manifest: &Manifest, name: &str) -> (DaemonPod, String) {
        let (daemon, output) = self.daemon_pod(manifest, name);
        let is_ready = wait::within(TO_BE_READY, || daemon.ready().0);
        assert!(
            is_ready,
            "not within {TO_BE_READY:?}: {:?}; {}",
            daemon.ready(),
            daemon.output()
        );
        (daemon, output)
    }

    /// Runs a pod whose only container requests one `rdma/hca`. The runtime creates the container only if the daemon
    /// permits its start. After a failure, releases the pod's ids.
    ///
    /// # Errors
    /// The error has the text that kubelet would write into the pod's event.
    #[track_caller]
    pub fn run(&self, name: &str) -> Result<Pod, NotStarted> {
        let given = self
            .kubelet
            .allocate(&AllocationRequest::new(name, "main", HCA, 1));
        let given = given.unwrap_or_else(|status| panic!("{name}: {status}"));
        self.pod_resources.set_pods(&self.kubelet.pod_resources());
        let spec = PodSpec::new(name).container("main", &[given]);
        let may_start = Cell::new(true);
        let pod = self.runtime.run_asking(&spec, |given| {
            let response = self.kubelet.before_start(&given.resource, &given.ids);
            may_start.set(response.is_ok());
            response
        });
        pod.map_err(|status| {
            self.free(name);
            let message = status.message().to_owned();
            match may_start.get() {
                true => NotStarted::Failed(message),
                false => NotStarted::Refused(message),
            }
        })
    }

    /// Runs a pod like [`Self::run`]. The pod must start.
    #[track_caller]
    pub fn pod(&self, name: &str) -> Pod {
        let pod = self.run(name);
        pod.unwrap_or_else(|why| panic!("{name}: {why:?}"))
    }

    /// Removes a pod, and releases its ids.
    #[track_caller]
    pub fn remove(&self, pod: Pod) {
        let name = pod.name.clone();
        pod.remove();
        self.free(&name);
    }

    fn free(&self, name: &str) {
        self.kubelet.free(name);
        self.pod_resources.set_pods(&self.kubelet.pod_resources());
    }
}

/// Removes the files that an earlier test left in the guest's node directories.
#[track_caller]
pub fn clear() {
    assert!(
        env::var_os("RDMA_LAB_TIER").is_some(),
        "the test removes /etc/cni, /opt/cni, /var/lib/cni and {}: run it in the lab",
        real_kubelet::DIRECTORY
    );
    for left in [
        "/etc/cni",
        "/opt/cni",
        "/var/lib/cni",
        real_kubelet::DIRECTORY,
    ] {
        if Path::new(left).exists() {
            fs::remove_dir_all(left).expect("the previous directory is removed");
        }
    }
}

/// Returns the path of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the conflist of a primary network called `name`, as the network's own program writes it.
pub fn primary(name: &str) -> String {
    let bridge = smc::pods::bridge(Path::new("/var/lib/cni/networks"));
    format!(
        "{:#}\n",
        json!({"cniVersion": "1.0.0", "name": name, "plugins": [bridge]})
    )
}

/// Returns the path of the archive of this tree's image.
#[track_caller]
pub fn image() -> PathBuf {
    let image = env::var_os(IMAGE).map(PathBuf::from);
    image.unwrap_or_else(|| panic!("{IMAGE} is not set: scripts/test lab makes the image"))
}

/// Writes the conflist of the primary network atomically.
#[track_caller]
pub fn write_list(text: &str) {
    let new = Path::new(LIST).with_extension("conflist.tmp");
    fs::write(&new, text).expect("the list");
    fs::rename(new, LIST).expect("the list");
}

/// Returns `rdma-cni`'s records by their file names.
pub fn records() -> BTreeMap<String, String> {
    let networks = fs::read_dir(Path::new(STATE).join("attachments"));
    let networks = networks.into_iter().flatten().flatten();
    let files = networks.flat_map(|it| fs::read_dir(it.path()).into_iter().flatten().flatten());
    let records = files
        .map(|it| it.path())
        .filter(|it| it.extension().is_some_and(|it| it == "json"));
    let named = |path: PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy();
        let text = fs::read_to_string(&path).expect("a record");
        (name.into_owned(), text)
    };
    records.map(named).collect()
}
