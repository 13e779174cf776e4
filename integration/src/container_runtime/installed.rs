// SPDX-License-Identifier: Apache-2.0
//! A node whose daemon is a DaemonSet's pod, made of the image: everything is by the path that it has
//! on a node. What is written there is forgotten with the lab's guest.

use super::{
    ContainerRuntime, DaemonPod, Pod, PodSpec, daemon_set::Ended, manifest::Manifest, shared::HCA,
};
use crate::{
    BondedNics,
    kubelet::{DeviceManager, Wish, pod_resources::PodResourcesServer},
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

/// The list of the node's primary network.
pub const LIST: &str = "/etc/cni/net.d/10-pods.conflist";

/// Directory of the chain's records.
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

/// Last line of a complete `uninstall --stay`.
pub const UNINSTALLED: &str = "nothing is left to remove";

/// Files that stay by design: the daemon's and the chain's own state, in their own directory; and the state of IPAM
/// plugins and of the runtime's CNI library for the networks that they served.
pub const LEFT: [&str; 3] = [STATE, "/var/lib/cni/networks", "/var/lib/cni/results"];

/// Names the archive of this tree's image.
const IMAGE: &str = "RDMA_LAB_IMAGE";

/// Limit until a daemon is ready in an emulated machine.
const TO_BE_READY: Duration = Duration::from_secs(240);

/// Why a pod did not start.
#[derive(Debug)]
pub enum NotStarted {
    /// The daemon did not let its container start (PreStartContainer): its sentence.
    Refused(String),
    /// The runtime could not make it: its sentence.
    Failed(String),
}

/// The node.
#[derive(Debug)]
pub struct InstalledNode {
    /// The runtime.
    pub runtime: ContainerRuntime,
    /// Kubelet's device manager.
    pub kubelet: DeviceManager,
    /// The bonds.
    pub nics: BondedNics,
    pod_resources: PodResourcesServer,
}

impl Default for InstalledNode {
    fn default() -> Self {
        Self::new()
    }
}

impl InstalledNode {
    /// Starts a node with a primary network and this tree's image, without an installation.
    #[track_caller]
    pub fn new() -> Self {
        clear();
        // as systemd has it: what is mounted on the node can come into containers
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

    /// The pod of the manifest, and the output of its init containers.
    #[track_caller]
    pub fn daemon_pod(&self, manifest: &Manifest, name: &str) -> (DaemonPod, String) {
        let started = self.runtime.daemon_pod(manifest, name);
        started.unwrap_or_else(|Ended { code, said }| {
            panic!("an init container of {name} ended with {code}: {said}")
        })
    }

    /// Does the same as `daemon_pod`, and waits until the readiness probe succeeds.
    #[track_caller]
    pub fn daemon(&self, manifest: &Manifest, name: &str) -> (DaemonPod, String) {
        let (daemon, said) = self.daemon_pod(manifest, name);
        let is_ready = wait::within(TO_BE_READY, || daemon.ready().0);
        assert!(
            is_ready,
            "not within {TO_BE_READY:?}: {:?}; {}",
            daemon.ready(),
            daemon.said()
        );
        (daemon, said)
    }

    /// A pod whose one container asks for one `rdma/hca`; its container is made if the daemon lets
    /// it start. Of one that fails nothing is left, unless the runtime could not end it.
    ///
    /// # Errors
    /// What kubelet would put into the pod's event.
    #[track_caller]
    pub fn run(&self, name: &str) -> Result<Pod, NotStarted> {
        let given = self.kubelet.allocate(&Wish::new(name, "main", HCA, 1));
        let given = given.unwrap_or_else(|status| panic!("{name}: {status}"));
        self.pod_resources.set_pods(&self.kubelet.pod_resources());
        let spec = PodSpec::new(name).container("main", &[given]);
        let may_start = Cell::new(true);
        let pod = self.runtime.run_asking(&spec, |given| {
            let asked = self.kubelet.before_start(&given.resource, &given.ids);
            may_start.set(asked.is_ok());
            asked
        });
        pod.map_err(|status| {
            self.free(name);
            let said = status.message().to_owned();
            match may_start.get() {
                true => NotStarted::Failed(said),
                false => NotStarted::Refused(said),
            }
        })
    }

    /// Does the same as `run`, for a pod that must start.
    #[track_caller]
    pub fn pod(&self, name: &str) -> Pod {
        let pod = self.run(name);
        pod.unwrap_or_else(|why| panic!("{name}: {why:?}"))
    }

    /// The pod's end.
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

/// Removes files that an earlier test of the guest left in a node's directories.
#[track_caller]
pub fn clear() {
    assert!(
        env::var_os("RDMA_LAB_TIER").is_some(),
        "this node owns /etc/cni, /opt/cni and {}: this test runs in the lab",
        real_kubelet::DIRECTORY
    );
    for left in [
        "/etc/cni",
        "/opt/cni",
        "/var/lib/cni",
        real_kubelet::DIRECTORY,
    ] {
        if Path::new(left).exists() {
            fs::remove_dir_all(left).expect("what was left is removed");
        }
    }
}

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The list of a primary network that is called `name`, as its own program writes it.
pub fn primary(name: &str) -> String {
    let bridge = smc::bridge(Path::new("/var/lib/cni/networks"));
    format!(
        "{:#}\n",
        json!({"cniVersion": "1.0.0", "name": name, "plugins": [bridge]})
    )
}

/// The archive of this tree's image.
#[track_caller]
pub fn image() -> PathBuf {
    let image = env::var_os(IMAGE).map(PathBuf::from);
    image.unwrap_or_else(|| panic!("{IMAGE} is not set: scripts/test lab makes the image"))
}

/// Writes the primary network's list atomically.
#[track_caller]
pub fn write_list(text: &str) {
    let new = Path::new(LIST).with_extension("conflist.tmp");
    fs::write(&new, text).expect("the list");
    fs::rename(new, LIST).expect("the list");
}

/// The chain's records, by file name.
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
