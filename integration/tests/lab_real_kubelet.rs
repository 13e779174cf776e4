//! In the lab, kubelet itself: `scripts/test lab real-kubelet` builds it and runs this. It asks the daemon,
//! and real containerd calls the chain; everything is where it is on a node.

use integration::{
    BondedNics, Conflist, Containerd, Daemon, Netns, RealKubelet, Snapshot,
    containerd::{
        Pod, TOOLS,
        shared::{HCA, has_all_rails, links, rping_on_all_rails},
    },
    daemon::rdma_device_plugin,
    real_kubelet::{pod_name, pod_resources, registrations},
    smc, wait,
};
use kubelet_api::pod_resources::of_pod_blocking;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tempfile::TempDir;

/// As the seeds have it.
const OLD_CONFIG_MAP: &str = r#"{ "mode" : "hca" }"#;

/// Where the chain keeps its records, unless it is told another place.
const RECORDS: &str = "/var/lib/cni/rdma-cni/attachments/net";

struct Scene {
    // the first to end: it would start anew what ends with the others
    kubelet: RealKubelet,
    containerd: Containerd,
    daemon: Daemon,
    nics: BondedNics,
    _directory: TempDir,
}

impl Scene {
    #[track_caller]
    fn new() -> Self {
        let nics = BondedNics::new();
        let directory = TempDir::new().expect("a temporary directory");
        let containerd = Containerd::start(Path::new("/var/run/cdi"));
        containerd.network.set(&list(directory.path()));
        let mut kubelet = RealKubelet::start(containerd.cri().socket(), "10.20.0.1");
        let file = directory.path().join("config.json");
        fs::write(&file, OLD_CONFIG_MAP).expect("the configuration");
        let mut command = Command::new(rdma_device_plugin());
        command.arg("--config").arg(file);
        let daemon = Daemon::start(&mut command);
        until_registered(&mut kubelet);
        Self {
            nics,
            kubelet,
            containerd,
            daemon,
            _directory: directory,
        }
    }

    /// Kubelet has the manifest, and its pod runs.
    #[track_caller]
    fn pod(&mut self, manifest: &Value) -> Pod {
        self.kubelet.put(manifest);
        self.known(manifest)
    }

    /// The pod as kubelet knows it.
    #[track_caller]
    fn known(&mut self, manifest: &Value) -> Pod {
        let status = self.kubelet.running(manifest);
        let container = &status["status"]["containerStatuses"][0];
        assert_eq!(container["restartCount"], 0, "{status:#}");
        let id = container["containerID"].as_str().expect("an id");
        let id = id.strip_prefix("containerd://").expect("containerd's");
        let name = pod_name(manifest);
        let sandboxes = self.containerd.cri().pods().expect("a list");
        let is_it = |it: &&cri_api::PodSandbox| {
            it.metadata.as_ref().is_some_and(|it| it.name == name)
                && it.state() == cri_api::PodSandboxState::SandboxReady
        };
        let sandbox = sandboxes.iter().find(is_it);
        let sandbox = sandbox.unwrap_or_else(|| panic!("{name}: {sandboxes:?}"));
        let called = container["name"].as_str().expect("a name");
        let pod = self
            .containerd
            .of_kubelet(&name, &sandbox.id, &[(called, id)]);
        // kubelet's address of the pod is its primary network's
        let address = status["status"]["podIP"].as_str().expect("an address");
        assert!(address.starts_with("10.88."), "{address}");
        pod
    }

    /// Their manifests are taken away; comes back when containerd has ended them, DEL included:
    /// the namespace goes last.
    #[track_caller]
    fn end(&mut self, pods: &[(&Value, &Pod)]) {
        let netns: Vec<Netns> = pods.iter().map(|(_, pod)| pod.netns()).collect();
        for (manifest, _) in pods {
            self.kubelet.take(manifest);
        }
        self.kubelet.until("its pods have ended", || {
            netns.iter().all(|it| !it.path().exists())
        });
        // no answer is not the same as no pods
        let mut pods = None;
        wait::until("kubelet answers", || {
            pods = self.kubelet.pods();
            pods.is_some()
        });
        assert_eq!(pods, Some(vec![]));
    }

    /// How many pods have records of the chain. What else is there is a lock for each.
    fn records(&self) -> usize {
        let files = fs::read_dir(RECORDS).into_iter().flatten().flatten();
        let is_record = |path: &PathBuf| path.extension().is_some_and(|it| it == "json");
        files.map(|file| file.path()).filter(is_record).count()
    }
}

/// A primary network, and after it the chain, which is told nothing but where addresses are from.
fn list(directory: &Path) -> Conflist {
    let chain = json!({
        "type": "rdma-cni",
        "ipam": {"type": "rdma-ipam", "from": "parent", "family": "both",
                 "dataDir": directory.join("leases")},
    });
    Conflist::new(
        "1.0.0",
        vec![smc::bridge(&directory.join("networks")), chain],
    )
}

/// The seeds' pod, but for its image; and its shell takes no SIGTERM, which is not waited for.
fn test_pod(name: &str, limits: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "OnFailure",
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "image": TOOLS,
                "imagePullPolicy": "Never",
                "name": "mofed-test-ctr",
                "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                "resources": {"limits": limits},
                "command": ["sh", "-c", "ls -l /dev/infiniband /sys/class/net\nsleep 1000000"],
            }],
        },
    })
}

#[track_caller]
fn until_registered(kubelet: &mut RealKubelet) {
    kubelet.until("the daemon has registered", || registrations(HCA) > 0);
}

/// What kubelet says that the pod was allocated: so many ids.
#[track_caller]
fn allocated(pod: &Pod) -> usize {
    let limit = Duration::from_secs(20);
    let told = of_pod_blocking(&pod_resources(), "default", &pod.name, limit);
    let told = told.unwrap_or_else(|error| panic!("{error}"));
    let told = told.unwrap_or_else(|| panic!("kubelet does not know {}", pod.name));
    let devices = told.containers.iter().flat_map(|it| &it.devices);
    let of_ours = devices.filter(|it| it.resource_name == HCA);
    of_ours.map(|it| it.device_ids.len()).sum()
}

#[test]
fn pods_of_a_real_kubelet_have_their_rails_and_outlive_its_restart() {
    let mut scene = Scene::new();
    let plain = test_pod("plain", &json!({}));
    let pod = scene.pod(&plain);
    assert_eq!(allocated(&pod), 0);
    assert_eq!(links(&pod.netns()), ["lo", "eth0"]);
    assert_eq!(scene.records(), 0, "a pod without RDMA is untouched");
    scene.end(&[(&plain, &pod)]);
    let before = Snapshot::of(&scene.nics.host);

    let first = test_pod("rdma-test-pod", &json!({HCA: 1}));
    let server = scene.pod(&first);
    has_all_rails(&server);
    assert_eq!(allocated(&server), 1);

    scene.kubelet.go(Signal::SIGTERM);
    has_all_rails(&server);
    scene.kubelet.come();
    until_registered(&mut scene.kubelet);
    scene.daemon.says_times("registered with kubelet", 2);
    // the same container, which did not restart, and still has what it was allocated
    let same = scene.known(&first);
    assert_eq!(same.main().id, server.main().id);
    assert_eq!(same.sandbox, server.sandbox);
    assert_eq!(allocated(&server), 1);
    let second = test_pod("rdma-test-pod-1", &json!({HCA: 1}));
    let client = scene.pod(&second);
    has_all_rails(&client);
    assert_eq!(allocated(&client), 1);
    assert_eq!(scene.records(), 2);
    rping_on_all_rails([&server, &client]);

    scene.end(&[(&first, &server), (&second, &client)]);
    before.assert_restored(&scene.nics.host);
    assert_eq!(scene.records(), 0);
}
