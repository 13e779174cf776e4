// SPDX-License-Identifier: Apache-2.0
//! A cluster in the lab: Kubernetes' control plane, kubelet and a container runtime on one node with bonded NICs, on
//! which nothing of ours is installed (`integration/lab/vm --tier full --shared --memory 4096`).
//! Everything is by the path that it has on a node. What is written there is forgotten with the guest.

pub mod traffic;

use crate::{
    BondedNics, ContainerRuntime, ControlPlane, Netns, RealKubelet,
    container_runtime::{
        Engine, Pod, PodSpec, TOOLS,
        installed::{clear, image, primary, root, write_list},
    },
    control_plane::{ADDRESS, NODE, SERVICE, succeeded},
    netns::check,
};
use serde_json::{Value, json};
use std::{
    fs,
    path::Path,
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// As long as anything of a cluster's may take in an emulated machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// What examples name, and what they get: nothing is pulled.
const IMAGES: [&str; 2] = ["mellanox/centos_7_4_mofed_4_2_1_2_0_0_60", TOOLS];

/// The node's NIC for all but RDMA, and its other end.
const MANAGEMENT: [&str; 2] = ["eth0", "eth0-far"];

/// The cluster.
#[derive(Debug)]
pub struct Cluster {
    // the first to end: it would start anew what ends with the others
    /// Kubelet of the one node.
    pub kubelet: RealKubelet,
    /// Its runtime.
    pub runtime: ContainerRuntime,
    /// The control plane, on the same node.
    pub plane: ControlPlane,
    /// The bonds.
    pub nics: BondedNics,
    began: Instant,
    _management: Management,
    _desk: TempDir,
}

impl Default for Cluster {
    fn default() -> Self {
        Self::new()
    }
}

impl Cluster {
    /// One whose node is ready, with a primary network that has had a pod: its bridge stays. It has this
    /// tree's image.
    #[track_caller]
    pub fn new() -> Self {
        let began = Instant::now();
        clear();
        // as systemd has it: what is mounted on the node can come into containers
        check(Command::new("mount").args(["--make-rshared", "/"]));
        let management = Management::new();
        let desk = desk();
        let (plane, (runtime, nics)) = thread::scope(|scope| {
            let runtime = scope.spawn(|| {
                let nics = BondedNics::new();
                let runtime = ContainerRuntime::start_on_node();
                runtime.import(&image());
                write_list(&primary("pods"));
                runtime.pod(&PodSpec::new("first")).remove();
                say(began, "the runtime runs pods");
                (runtime, nics)
            });
            let plane = ControlPlane::start_on_node(desk.path().to_owned());
            say(began, "the control plane takes pods");
            (plane, runtime.join().expect("the runtime"))
        });
        let kubelet = RealKubelet::start(runtime.cri().socket(), &plane);
        let mut cluster = Self {
            kubelet,
            runtime,
            plane,
            nics,
            began,
            _management: management,
            _desk: desk,
        };
        cluster.until("the node is ready", |it| {
            let node = it.look(&format!("/api/v1/nodes/{NODE}"));
            is_true(&node, "Ready") && node["spec"]["taints"].is_null()
        });
        cluster.says("the node is ready");
        cluster
    }

    /// Prints how many seconds it took to get here.
    pub fn says(&self, what: &str) {
        say(self.began, what);
    }

    /// What an operator types, in a directory that has the repository's `conf`, with images that the lab
    /// has in the examples, and the lab's runtime in the manifests; it must succeed. What it printed.
    #[track_caller]
    pub fn types(&self, line: &str) -> String {
        succeeded(line, self.tries(line))
    }

    /// The same, whatever becomes of it.
    #[track_caller]
    pub fn tries(&self, line: &str) -> Output {
        let output = self.plane.try_shell(line);
        self.says(line);
        output
    }

    /// An object of the API, by its path; null: there is none.
    pub fn look(&self, path: &str) -> Value {
        let text = self.plane.ask(path);
        text.map_or(Value::Null, |it| {
            serde_json::from_str(&it).expect("the API server answers JSON")
        })
    }

    /// The objects of a list of the API, by its path.
    pub fn look_at_all(&self, path: &str) -> Vec<Value> {
        match self.look(path)["items"].take() {
            Value::Array(items) => items,
            _ => vec![],
        }
    }

    /// Makes an object in a list of the API, by its path.
    #[track_caller]
    pub fn make(&self, path: &str, object: &Value) {
        self.does("POST", path, object);
    }

    /// Deletes objects of a list of the API, by its path, with all that belongs to them; the shells of pods,
    /// which take no SIGTERM, are not waited for.
    #[track_caller]
    pub fn delete(&self, path: &str, names: &[&str]) {
        let options = json!({"gracePeriodSeconds": 1, "propagationPolicy": "Background"});
        for name in names {
            self.does("DELETE", &format!("{path}/{name}"), &options);
        }
    }

    #[track_caller]
    fn does(&self, method: &str, path: &str, object: &Value) {
        let answer = self.plane.request(method, path, &object.to_string());
        let (is_done, said) = answer.expect("the API server answers");
        assert!(is_done, "{method} {path}: {said}");
    }

    /// Waits for `done`, as long as anything of a cluster's may take here.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            self.kubelet.assert_runs(what);
            self.plane.assert_runs(what);
            assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
            // each question costs an emulated machine some of what the others need
            thread::sleep(Duration::from_secs(1));
        }
    }

    /// A pod of the namespace `default` whose containers are ready and never started anew, as the runtime
    /// has it.
    #[track_caller]
    pub fn pod(&mut self, name: &str) -> Pod {
        self.pod_of("default", name)
    }

    /// The same of a pod of any namespace.
    #[track_caller]
    pub fn pod_of(&mut self, namespace: &str, name: &str) -> Pod {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        self.until(&format!("{name} is ready"), |it| {
            is_true(&it.look(&path), "Ready")
        });
        let told = self.look(&path);
        let containers = told["status"]["containerStatuses"].as_array();
        let containers: Vec<(&str, &str)> = containers
            .expect("it has containers")
            .iter()
            .map(|it| {
                assert_eq!(it["restartCount"], 0, "{told:#}");
                let id = it["containerID"].as_str().expect("an id");
                let id = id.strip_prefix(self.runtime.engine().scheme());
                let id = id.unwrap_or_else(|| panic!("{told:#}"));
                (it["name"].as_str().expect("a name"), id)
            })
            .collect();
        let uid = told["metadata"]["uid"].as_str().expect("an id");
        let sandboxes = self.runtime.cri().pods().expect("a list");
        let is_it = |it: &&cri_api::PodSandbox| {
            it.metadata.as_ref().is_some_and(|it| it.uid == uid)
                && it.state() == cri_api::PodSandboxState::SandboxReady
        };
        let sandbox = sandboxes.iter().find(is_it);
        let sandbox = sandbox.unwrap_or_else(|| panic!("{name}: {sandboxes:?}"));
        self.runtime.of_kubelet(name, &sandbox.id, &containers)
    }

    /// What the node has of `resource` for pods, as the API server tells it.
    pub fn allocatable(&self, resource: &str) -> Option<String> {
        let node = self.look(&format!("/api/v1/nodes/{NODE}"));
        let text = node["status"]["allocatable"][resource].as_str();
        text.map(str::to_owned)
    }
}

/// Whether an object's condition is there.
pub fn is_true(object: &Value, condition: &str) -> bool {
    let all = object["status"]["conditions"].as_array();
    let mut all = all.into_iter().flatten();
    all.any(|it| it["type"] == condition && it["status"] == "True")
}

fn say(began: Instant, what: &str) {
    eprintln!("{:6.1} s: {what}", began.elapsed().as_secs_f64());
}

/// Where an operator types.
#[track_caller]
fn desk() -> TempDir {
    let desk = TempDir::with_prefix_in("desk.", "/run").expect("a directory");
    let conf = root().join("conf");
    check(Command::new("cp").arg("-r").arg(conf).arg(desk.path()));
    let [of_users, of_the_lab] = IMAGES;
    change(&desk.path().join("conf/examples"), of_users, of_the_lab);
    if Engine::of_the_lab() == Engine::Crio {
        // what docs/node.md tells its users
        let chain = "\"chain\": {";
        let runtime = format!("{chain} \"runtime\": \"crio\",");
        change(&desk.path().join("conf/manifests"), chain, &runtime);
    }
    desk
}

/// Changes what is in the YAML files of a directory.
#[track_caller]
fn change(directory: &Path, from: &str, to: &str) {
    let files = fs::read_dir(directory).expect("a directory");
    let files = files.map(|it| it.expect("a file").path());
    let mut changed = 0;
    for file in files.filter(|it| it.extension().is_some_and(|it| it == "yaml")) {
        let text = fs::read_to_string(&file).expect("a file");
        changed += text.matches(from).count();
        fs::write(&file, text.replace(from, to)).expect("a file");
    }
    assert!(changed > 0, "{directory:?} has no {from:?}");
}

/// The NIC by which the node is reached, and its default route: no rail.
#[derive(Debug)]
struct Management;

impl Management {
    #[track_caller]
    fn new() -> Self {
        let [near, far] = MANAGEMENT;
        Netns::own().ip_batch(&[
            format!("link add {near} type veth peer name {far}"),
            format!("address add {ADDRESS}/24 dev {near}"),
            format!("link set dev {far} up"),
            format!("link set dev {near} up"),
            format!("route add default via 10.99.0.254 dev {near}"),
            format!("address add {SERVICE}/32 dev lo"),
        ]);
        Self
    }
}

impl Drop for Management {
    fn drop(&mut self) {
        let mut ip = Command::new("ip");
        let _ = ip.args(["link", "delete", MANAGEMENT[0]]).output();
        let service = format!("{SERVICE}/32");
        let mut ip = Command::new("ip");
        let _ = ip
            .args(["address", "delete", &service, "dev", "lo"])
            .output();
    }
}
