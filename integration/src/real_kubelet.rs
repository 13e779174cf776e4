//! Kubelet itself in the lab, alone: no API server, its pods are manifests in a directory, their
//! containers real containerd's. `integration/kubernetes/build` makes the program.
//!
//! Its directory is `/var/lib/kubelet`, as on a node: kubelet makes the device plugins' socket
//! there and nowhere else (`KubeletSocket` in `k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1`).
//! It is a file system of its own there. On the guest's overlay kubelet cannot always move the
//! socket of its pod-resources from the name it listens by to the one it is asked by
//! (`pkg/kubelet/util/util_unix.go`, `os.Rename`): EXDEV, and it ends.

use crate::{tmpfs::Tmpfs, wait};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Map, Value, json};
use std::{
    env,
    fs::{self, File},
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The directory that all its clients expect.
pub const DIRECTORY: &str = "/var/lib/kubelet";

/// What kubelet appends to the name of a manifest's pod.
pub const NODE: &str = "node";

/// Where it answers whoever asks.
const READ_ONLY: &str = "127.0.0.1:10255";

/// As long as a start, or a pod's coming or going, may take in an emulated machine.
const PATIENCE: Duration = Duration::from_secs(150);

/// A kubelet that runs; killed when dropped. Its pods live on, as their containers do.
#[derive(Debug)]
pub struct RealKubelet {
    program: PathBuf,
    node_ip: String,
    process: Option<Child>,
    _directory: Tmpfs,
}

impl RealKubelet {
    /// One whose runtime listens at `runtime`, and whose node has the address `node_ip`. It has
    /// no pods.
    #[track_caller]
    pub fn start(runtime: &Path, node_ip: &str) -> Self {
        assert!(
            env::var_os("RDMA_LAB_TIER").is_some(),
            "kubelet owns {DIRECTORY}, cgroups and mounts: this test runs in the lab"
        );
        let program = env::var_os("RDMA_LAB_KUBELET").map(PathBuf::from);
        let program =
            program.expect("scripts/test lab real-kubelet builds kubelet, and says where it is");
        let directory = Tmpfs::of("mode=755", Path::new(DIRECTORY));
        fs::create_dir(manifests()).expect("the manifests' directory");
        let configuration = format!("{:#}", configuration(runtime));
        fs::write(at("config.json"), configuration).expect("kubelet's configuration");
        let mut kubelet = Self {
            program,
            node_ip: node_ip.to_owned(),
            process: None,
            _directory: directory,
        };
        kubelet.come();
        kubelet
    }

    /// Starts the process, and waits until it answers.
    #[track_caller]
    pub fn come(&mut self) {
        assert!(self.process.is_none(), "kubelet runs already");
        let log = File::options().create(true).append(true).open(at("log"));
        let log = log.expect("a log");
        let mut command = Command::new(&self.program);
        command
            .arg("--config")
            .arg(at("config.json"))
            .arg(format!("--hostname-override={NODE}"))
            .arg(format!("--node-ip={}", self.node_ip));
        let errors = log.try_clone().expect("a second handle");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let child = command.spawn();
        self.process = Some(child.unwrap_or_else(|error| panic!("{command:?}: {error}")));
        self.until("kubelet answers", || get("/healthz").is_some());
    }

    /// Ends the process by `signal`.
    #[track_caller]
    pub fn go(&mut self, signal: Signal) {
        let mut process = self.process.take().expect("kubelet runs");
        let pid = Pid::from_raw(i32::try_from(process.id()).expect("a pid"));
        kill(pid, signal).expect("a signal sent");
        let ended = wait::within(PATIENCE, || {
            process.try_wait().expect("our own child").is_some()
        });
        if !ended {
            let _ = process.kill();
            let _ = process.wait();
            panic!("kubelet does not end by {signal}");
        }
    }

    /// Gives it a pod's manifest; there is never half a file.
    #[track_caller]
    pub fn put(&self, manifest: &Value) {
        let file = file_of(manifest);
        // names that begin with a dot are none of its manifests
        let new = file.with_file_name(".new");
        fs::write(&new, format!("{manifest:#}")).expect("a manifest");
        fs::rename(&new, file).expect("a manifest");
    }

    /// Takes a pod's manifest away.
    #[track_caller]
    pub fn take(&self, manifest: &Value) {
        fs::remove_file(file_of(manifest)).expect("its manifest");
    }

    /// Its pods, as it would report them to an API server; none: it does not answer.
    pub fn pods(&self) -> Option<Vec<Value>> {
        pods()
    }

    /// The pod of the manifest, as soon as all its containers run.
    #[track_caller]
    pub fn running(&mut self, manifest: &Value) -> Value {
        let name = pod_name(manifest);
        let mut found = Value::Null;
        self.until(&format!("{name} runs"), || {
            let mut pods = pods().into_iter().flatten();
            found = pods
                .find(|pod| pod["metadata"]["name"] == name)
                .unwrap_or_default();
            let containers = found["status"]["containerStatuses"].as_array();
            let runs = |it: &Value| it["state"]["running"].is_object();
            containers.is_some_and(|all| !all.is_empty() && all.iter().all(runs))
        });
        found
    }

    /// Waits for `done`, as long as anything of kubelet's may take here.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut done: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done() {
            let process = self.process.as_mut().expect("kubelet runs");
            let ended = process.try_wait().expect("our own child");
            assert!(
                ended.is_none(),
                "kubelet ended ({ended:?}), not yet: {what}"
            );
            assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
            // each question costs an emulated machine some of what kubelet needs itself
            thread::sleep(Duration::from_millis(300));
        }
    }
}

impl Drop for RealKubelet {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        if thread::panicking() {
            let log = fs::read_to_string(at("log")).unwrap_or_default();
            let bad: Vec<&str> = log
                .lines()
                .filter(|it| it.starts_with(['E', 'F']))
                .collect();
            let last = &bad[bad.len().saturating_sub(40)..];
            eprintln!("kubelet's last errors:\n{}", last.join("\n"));
            eprintln!("its pods:\n{:#}", json!(pods()));
        }
    }
}

/// What the manifest's pod is called.
#[track_caller]
pub fn pod_name(manifest: &Value) -> String {
    format!("{}-{NODE}", name_of(manifest))
}

/// How often a device plugin has registered `resource` with the kubelet that runs.
pub fn registrations(resource: &str) -> u32 {
    let metric =
        format!("kubelet_device_plugin_registration_total{{resource_name=\"{resource}\"}} ");
    let metrics = get("/metrics").unwrap_or_default();
    let value = metrics.lines().find_map(|line| line.strip_prefix(&metric));
    value.map_or(0, |it| it.trim().parse().expect("a count"))
}

/// Kubelet's pod-resources.
pub fn pod_resources() -> PathBuf {
    at("pod-resources/kubelet.sock")
}

fn at(below: &str) -> PathBuf {
    Path::new(DIRECTORY).join(below)
}

fn manifests() -> PathBuf {
    at("manifests")
}

#[track_caller]
fn name_of(manifest: &Value) -> &str {
    let name = manifest["metadata"]["name"].as_str();
    name.unwrap_or_else(|| panic!("there is no name in {manifest:#}"))
}

#[track_caller]
fn file_of(manifest: &Value) -> PathBuf {
    manifests().join(format!("{}.json", name_of(manifest)))
}

fn pods() -> Option<Vec<Value>> {
    let mut answer: Map<String, Value> = serde_json::from_str(&get("/pods")?).ok()?;
    match answer.remove("items")? {
        Value::Array(pods) => Some(pods),
        // a list in which there was never anything, as Go writes it
        Value::Null => Some(vec![]),
        _ => None,
    }
}

/// What kubelet answers on its read-only port; none if it does not, or with an error.
fn get(path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(READ_ONLY).ok()?;
    stream.set_read_timeout(Some(wait::PATIENCE)).ok()?;
    // HTTP/1.0: the answer's end is the connection's
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {NODE}\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.contains(" 200 ").then(|| body.to_owned())
}

/// `KubeletConfiguration`, `kubelet.config.k8s.io/v1beta1`. What is not said is as on any node.
fn configuration(runtime: &Path) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{}", runtime.display()),
        "staticPodPath": manifests(),
        "fileCheckFrequency": "1s",
        // without an API server nobody could say who may ask
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "address": "127.0.0.1",
        "readOnlyPort": 10255,
        // the guest has no systemd, no iptables, no resolver, and a / that is no disk
        "cgroupDriver": "cgroupfs",
        "makeIPTablesUtilChains": false,
        "resolvConf": "",
        "localStorageCapacityIsolation": false,
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "failSwapOn": false,
    })
}
