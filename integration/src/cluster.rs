// SPDX-License-Identifier: Apache-2.0
//! A cluster in the lab (`integration/lab/vm --tier full --shared --memory 4096`): kubelet and a container runtime on a
//! node with bonded NICs. `rdma-cni` is not installed yet. Kubernetes' control plane runs outside of the node
//! (`cluster-lab`). All files have their usual paths on the node. Without a disk they are lost when the guest ends.

pub mod claims;
pub mod migration;
pub mod traffic;

use crate::{
    BondedNics, ContainerRuntime, Netns, RealKubelet, RemoteControlPlane,
    container_runtime::{
        Pod, PodSpec,
        installed::{clear, image, write_list},
        shared::{HCA, IDS},
    },
    control_plane::{
        ADDRESS, COREDNS, SERVICE,
        nodes::{self, Member},
        succeeded,
    },
    netns::check,
    power,
};
use serde_json::{Value, json};
use std::{
    env, fs,
    path::Path,
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

/// Time limit for any step of a cluster in an emulated machine.
const TIMEOUT: Duration = Duration::from_secs(240);

/// Beginning and end of the MAC address of the node's management NIC (`integration/lab/vm --node`).
const MANAGEMENT: (&str, &str) = ("52:54:00:aa:", ":00");

/// The cluster.
#[derive(Debug)]
pub struct Cluster<N = BondedNics> {
    // dropped first: kubelet would restart the containers that end with the other fields
    /// This node's kubelet.
    pub kubelet: RealKubelet,
    /// The node's container runtime.
    pub runtime: ContainerRuntime,
    /// The control plane outside of the node.
    pub plane: RemoteControlPlane,
    /// The NICs for RDMA.
    pub nics: N,
    began: Instant,
    management: Management,
}

impl Default for Cluster {
    fn default() -> Self {
        Self::new()
    }
}

impl Cluster {
    /// Starts a cluster with bonded NICs.
    #[track_caller]
    pub fn new() -> Self {
        Self::with(BondedNics::new)
    }
}

impl<N: Send> Cluster<N> {
    /// Starts a cluster with this tree's image and with the NICs that `make` makes. Returns when the node is ready. A
    /// pod has run in the primary network, so the bridge exists.
    #[track_caller]
    pub fn with(make: impl FnOnce() -> N + Send) -> Self {
        let runtime = || {
            clear();
            let runtime = ContainerRuntime::start_on_node();
            furnish(&runtime);
            runtime
        };
        Self::start(make, runtime, RealKubelet::start)
    }

    /// Starts a cluster like [`Self::with`], but on a disk (`integration/lab/vm --disk`). The disk keeps its content
    /// when the machine boots again.
    #[track_caller]
    pub fn on_disk(make: impl FnOnce() -> N + Send) -> Self {
        let runtime = || {
            let runtime = ContainerRuntime::start_on_nodes_disk();
            if !power::is_on_again() {
                furnish(&runtime);
            }
            runtime
        };
        Self::start(make, runtime, RealKubelet::start_on_disk)
    }

    #[track_caller]
    fn start(
        make: impl FnOnce() -> N + Send,
        runtime: impl FnOnce() -> ContainerRuntime + Send,
        kubelet: impl FnOnce(&Path, &RemoteControlPlane) -> RealKubelet,
    ) -> Self {
        let began = Instant::now();
        // systemd does this too: later mounts of the node propagate into containers
        check(Command::new("mount").args(["--make-rshared", "/"]));
        let this = Member::this();
        let management = Management::new();
        let (plane, (runtime, nics)) = thread::scope(|scope| {
            let runtime = scope.spawn(|| {
                let nics = make();
                let runtime = runtime();
                say(began, "the runtime runs pods");
                (runtime, nics)
            });
            let plane = RemoteControlPlane::reached();
            say(began, "the control plane takes pods");
            (plane, runtime.join().expect("the runtime"))
        });
        let kubelet = kubelet(runtime.cri().socket(), &plane);
        let mut cluster = Self {
            kubelet,
            runtime,
            plane,
            nics,
            began,
            management,
        };
        cluster.until("the node is ready", |it| {
            let node = it.get(&format!("/api/v1/nodes/{}", this.name));
            is_true(&node, "Ready") && node["spec"]["taints"].is_null()
        });
        cluster.report("the node is ready");
        cluster
    }
}

impl<N> Cluster<N> {
    /// Prints `what` with the seconds since the cluster's start.
    pub fn report(&self, what: &str) {
        say(self.began, what);
    }

    /// Runs an operator's command line, which must succeed, and returns its output. `kubectl` and `helm` run outside of
    /// the node, in a directory with the repository's `conf`. In this directory, the examples name the lab's images,
    /// and the manifests the lab's runtime. Other programs run on the node.
    #[track_caller]
    pub fn types(&self, line: &str) -> String {
        succeeded(line, self.tries(line))
    }

    /// Runs a command line like [`Self::types`], but the command may fail.
    #[track_caller]
    pub fn tries(&self, line: &str) -> Output {
        let output = if line.starts_with("kubectl ") || line.starts_with("helm ") {
            self.plane.try_shell(line)
        } else {
            let output = Command::new("sh").args(["-e", "-c", line]).output();
            output.unwrap_or_else(|error| panic!("{line}: {error}"))
        };
        self.report(line);
        output
    }

    /// Returns an object of the API by its path. `Null`: the object does not exist, or the request failed.
    pub fn get(&self, path: &str) -> Value {
        let text = self.plane.ask(path);
        text.map_or(Value::Null, |it| {
            serde_json::from_str(&it).expect("the API server answers JSON")
        })
    }

    /// Returns the objects of the API's collection at `path`.
    pub fn list(&self, path: &str) -> Vec<Value> {
        match self.get(path)["items"].take() {
            Value::Array(items) => items,
            _ => vec![],
        }
    }

    /// Creates an object in the API's collection at `path`.
    #[track_caller]
    pub fn make(&self, path: &str, object: &Value) {
        self.does("POST", path, object);
    }

    /// Deletes the objects `names` of the API's collection at `path`, with all their dependents. Pods have one second
    /// to end, because their shells ignore SIGTERM.
    #[track_caller]
    pub fn delete(&self, path: &str, names: &[&str]) {
        let options = json!({"gracePeriodSeconds": 1, "propagationPolicy": "Background"});
        for name in names {
            self.does("DELETE", &format!("{path}/{name}"), &options);
        }
    }

    #[track_caller]
    fn does(&self, method: &str, path: &str, object: &Value) {
        let (is_done, answer) = self.plane.request(method, path, &object.to_string());
        assert!(is_done, "{method} {path}: {answer}");
    }

    /// Waits until `done` returns true. Panics at the time limit of a cluster's step, and if kubelet or the control
    /// plane has ended.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !done(self) {
            self.kubelet.assert_runs(what);
            self.plane.assert_runs(what);
            assert!(Instant::now() < end, "not within {TIMEOUT:?}: {what}");
            // more frequent requests would slow down the emulated machine
            thread::sleep(Duration::from_secs(1));
        }
    }

    /// Keeps the cluster running until the machine is switched off.
    pub fn stays(&mut self) -> ! {
        loop {
            self.kubelet.assert_runs("the node loses power");
            thread::sleep(Duration::from_secs(1));
        }
    }

    /// Waits until a pod of the namespace `default` is ready. Asserts that its containers have never been restarted.
    /// Returns the runtime's view of the pod.
    #[track_caller]
    pub fn pod(&mut self, name: &str) -> Pod {
        self.pod_of("default", name)
    }

    /// Waits like [`Self::pod`], for any namespace.
    #[track_caller]
    pub fn pod_of(&mut self, namespace: &str, name: &str) -> Pod {
        self.pod_started(namespace, name, 0)
    }

    /// Waits like [`Self::pod_of`], for containers that have been restarted `times` times.
    #[track_caller]
    pub fn pod_started(&mut self, namespace: &str, name: &str, times: u64) -> Pod {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let count = |it: &Value| it["restartCount"].as_u64();
        let mut object = Value::Null;
        self.until(&format!("{name} is ready"), |it| {
            object = it.get(&path);
            let containers = object["status"]["containerStatuses"].as_array();
            let mut containers = containers.into_iter().flatten();
            is_true(&object, "Ready") && containers.all(|it| count(it) >= Some(times))
        });
        let containers = object["status"]["containerStatuses"].as_array();
        let containers: Vec<(&str, &str)> = containers
            .expect("it has containers")
            .iter()
            .map(|it| {
                assert_eq!(count(it), Some(times), "{object:#}");
                let id = it["containerID"].as_str().expect("an id");
                let id = id.strip_prefix(self.runtime.engine().scheme());
                let id = id.unwrap_or_else(|| panic!("{object:#}"));
                (it["name"].as_str().expect("a name"), id)
            })
            .collect();
        let uid = object["metadata"]["uid"].as_str().expect("an id");
        let sandboxes = self.runtime.cri().pods().expect("a list");
        let is_it = |it: &&cri_api::PodSandbox| {
            it.metadata.as_ref().is_some_and(|it| it.uid == uid)
                && it.state() == cri_api::PodSandboxState::SandboxReady
        };
        let sandbox = sandboxes.iter().find(is_it);
        let sandbox = sandbox.unwrap_or_else(|| panic!("{name}: {sandboxes:?}"));
        self.runtime.of_kubelet(name, &sandbox.id, &containers)
    }

    /// Returns the netdev of the node's management NIC, which is no rail.
    pub fn management(&self) -> &str {
        &self.management.netdev
    }

    /// Returns this node's allocatable `resource`, from the API server.
    pub fn allocatable(&self, resource: &str) -> Option<String> {
        let node = self.get(&format!("/api/v1/nodes/{}", Member::this().name));
        let text = node["status"]["allocatable"][resource].as_str();
        text.map(str::to_owned)
    }

    /// Returns true if all ids of `rdma/hca` are allocatable on this node.
    pub fn has_ids(&self) -> bool {
        self.allocatable(HCA) == Some(IDS.to_string())
    }
}

/// Prepares a node for an installation: imports this tree's image, and sets up a primary network in which a pod has
/// run.
#[track_caller]
fn furnish(runtime: &ContainerRuntime) {
    runtime.import(&image());
    write_list(&primary(Member::this()));
    runtime.pod(&PodSpec::new("first")).remove();
}

/// Returns the conflist of the primary network `pods`. Each node has a part of the network's addresses, and is the
/// router of its pods.
fn primary(node: Member) -> String {
    // each route has the gateway: CRI-O calls CHECK after ADD, and CHECK does not find a route whose gateway is missing
    // here
    let route = |to: &str| json!({"dst": to, "gw": node.router()});
    let mut routes = vec![route(nodes::PODS)];
    if env::var_os(COREDNS).is_some() {
        routes.push(route(&format!("{ADDRESS}/32")));
    }
    let ipam = json!({
        "type": "host-local", "ranges": [[{"subnet": node.pods()}]], "routes": routes,
    });
    let bridge = json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": ipam});
    format!(
        "{:#}\n",
        json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]})
    )
}

/// Returns true if the object's `condition` has the status `True`.
pub fn is_true(object: &Value, condition: &str) -> bool {
    let all = object["status"]["conditions"].as_array();
    let mut all = all.into_iter().flatten();
    all.any(|it| it["type"] == condition && it["status"] == "True")
}

fn say(began: Instant, what: &str) {
    eprintln!("{:6.1} s: {what}", began.elapsed().as_secs_f64());
}

/// The management NIC with its address and routes. The control plane reaches the node by this NIC, which is no rail.
#[derive(Debug)]
struct Management {
    netdev: String,
}

impl Management {
    #[track_caller]
    fn new() -> Self {
        let netdev = Self::netdev();
        let this = Member::this();
        let mut lines = vec![
            format!("address add {}/24 dev {netdev}", this.address),
            format!("link set dev {netdev} up"),
            format!("route add default via {ADDRESS} dev {netdev}"),
            format!("route add {SERVICE}/32 via {ADDRESS} dev {netdev}"),
        ];
        for other in nodes::ALL.into_iter().filter(|it| *it != this) {
            lines.push(format!("route add {} via {}", other.pods(), other.address));
        }
        Netns::own().ip_batch(&lines);
        Self { netdev }
    }

    #[track_caller]
    fn netdev() -> String {
        let all = fs::read_dir("/sys/class/net").expect("netdevs");
        let mut all = all.map(|it| it.expect("a netdev"));
        let (begin, end) = MANAGEMENT;
        let found = all.find(|it| {
            let mac = fs::read_to_string(it.path().join("address")).unwrap_or_default();
            let mac = mac.trim();
            mac.starts_with(begin) && mac.ends_with(end)
        });
        let found =
            found.unwrap_or_else(|| panic!("no NIC {begin}…{end}: scripts/test lab cluster"));
        found.file_name().into_string().expect("UTF-8")
    }
}

impl Drop for Management {
    fn drop(&mut self) {
        // the kernel removes routes with the addresses
        for line in ["address flush dev", "link set down dev"] {
            let mut ip = Command::new("ip");
            let _ = ip.args(line.split(' ')).arg(&self.netdev).output();
        }
    }
}
