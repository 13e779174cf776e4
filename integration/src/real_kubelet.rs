// SPDX-License-Identifier: Apache-2.0
//! The real kubelet in the lab. It is joined to a control plane outside of the node. A real runtime runs its pods'
//! containers. `integration/kubernetes/build` builds kubelet.
//!
//! Kubelet's directory is `/var/lib/kubelet`, as on a node, because kubelet makes the device plugins' socket only there
//! (`KubeletSocket` in `k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1`). The directory is a separate file system. On the
//! guest's overlay, kubelet cannot always rename the socket of its pod-resources to its public name
//! (`pkg/kubelet/util/util_unix.go`, `os.Rename`): the rename fails with EXDEV, and kubelet ends.

use crate::{
    RemoteControlPlane,
    control_plane::{ADDRESS, COREDNS, DOMAIN, GC, nodes::Member},
    lab::has_systemd,
    tmpfs::Tmpfs,
    wait,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{
    env,
    fs::{self, File},
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

/// Kubelet's directory. All its clients use this path.
pub const DIRECTORY: &str = "/var/lib/kubelet";

/// Address of kubelet's read-only port.
const READ_ONLY: &str = "127.0.0.1:10255";

/// Time limit for kubelet's start, and for kubelet's end, in an emulated machine.
const TIMEOUT: Duration = Duration::from_secs(150);

/// A running kubelet. Drop kills kubelet. Its pods' containers continue to run.
#[derive(Debug)]
pub struct RealKubelet {
    program: PathBuf,
    kubeconfig: String,
    process: Option<Child>,
    _directory: Option<Tmpfs>,
}

impl RealKubelet {
    /// Starts the kubelet of this machine, whose runtime listens at `runtime`. Kubelet registers its node with `plane`
    /// a little later. The node has no pods.
    #[track_caller]
    pub fn start(runtime: &Path, plane: &RemoteControlPlane) -> Self {
        let directory = Tmpfs::of("mode=755", Path::new(DIRECTORY));
        Self::start_in(Some(directory), runtime, plane)
    }

    /// Starts kubelet like [`Self::start`], with kubelet's directory on the machine's disk
    /// (`integration/lab/vm --disk`). Kubelet then has the pods of the machine's earlier boots.
    #[track_caller]
    pub fn start_on_disk(runtime: &Path, plane: &RemoteControlPlane) -> Self {
        Self::start_in(None, runtime, plane)
    }

    #[track_caller]
    fn start_in(directory: Option<Tmpfs>, runtime: &Path, plane: &RemoteControlPlane) -> Self {
        let configuration = format!("{:#}", configuration(runtime, plane));
        fs::write(at("config.json"), configuration).expect("kubelet's configuration");
        let mut kubelet = Self {
            program: plane.program(),
            kubeconfig: plane.pki(&format!("{}.conf", Member::this().name)),
            process: None,
            _directory: directory,
        };
        kubelet.come();
        kubelet
    }

    /// Starts kubelet's process, and waits until kubelet answers.
    #[track_caller]
    pub fn come(&mut self) {
        assert!(self.process.is_none(), "kubelet runs already");
        let log = File::options().create(true).append(true).open(at("log"));
        let log = log.expect("a log");
        let mut command = Command::new(&self.program);
        command.env(GC.0, GC.1);
        command.arg("kubelet").arg("--config");
        command.arg(at("config.json"));
        command.arg(format!("--kubeconfig={}", self.kubeconfig));
        let node = Member::this();
        command.arg(format!("--hostname-override={}", node.name));
        command.arg(format!("--node-ip={}", node.address));
        // the log level of kubeadm's nodes: with it the log has the events of device plugins
        command.arg("--v=2");
        let errors = log.try_clone().expect("a second handle");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let child = command.spawn();
        self.process = Some(child.unwrap_or_else(|error| panic!("{command:?}: {error}")));
        let answered = wait::within(TIMEOUT, || {
            self.assert_runs("it answers");
            // more frequent requests would slow down kubelet on an emulated machine
            thread::sleep(Duration::from_millis(300));
            get(READ_ONLY, "/healthz").is_some()
        });
        assert!(answered, "kubelet does not answer within {TIMEOUT:?}");
    }

    /// Ends kubelet's process by `signal`.
    #[track_caller]
    pub fn go(&mut self, signal: Signal) {
        let mut process = self.process.take().expect("kubelet runs");
        let ended = wait::ends(&mut process, signal, TIMEOUT);
        assert!(ended, "kubelet does not end by {signal}");
    }

    /// Asserts that kubelet runs. `yet` is the state for which the caller waits.
    #[track_caller]
    pub fn assert_runs(&mut self, yet: &str) {
        let process = self.process.as_mut().expect("kubelet runs");
        let ended = process.try_wait().expect("our own child");
        assert!(ended.is_none(), "kubelet ended ({ended:?}), not yet: {yet}");
    }
}

impl Drop for RealKubelet {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        if thread::panicking() {
            let log = log();
            let bad: Vec<&str> = log
                .lines()
                .filter(|it| it.starts_with(['E', 'F']))
                .collect();
            let last = &bad[bad.len().saturating_sub(40)..];
            eprintln!("kubelet's last errors:\n{}", last.join("\n"));
        }
    }
}

/// Returns the number of times that a device plugin has registered `resource` with the running kubelet.
pub fn registrations(resource: &str) -> u32 {
    let metric =
        format!("kubelet_device_plugin_registration_total{{resource_name=\"{resource}\"}} ");
    let metrics = get(READ_ONLY, "/metrics").unwrap_or_default();
    let value = metrics.lines().find_map(|line| line.strip_prefix(&metric));
    value.map_or(0, |it| it.trim().parse().expect("a count"))
}

/// Returns the path of the socket of kubelet's pod-resources.
pub fn pod_resources() -> PathBuf {
    at("pod-resources/kubelet.sock")
}

/// Returns kubelet's log so far.
pub fn log() -> String {
    fs::read_to_string(at("log")).unwrap_or_default()
}

fn at(below: &str) -> PathBuf {
    Path::new(DIRECTORY).join(below)
}

/// Returns the answer of the server at `address`. Returns `None` without an answer, and for an error.
pub fn get(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(wait::TIMEOUT)).ok()?;
    // HTTP/1.0: the answer ends with the connection
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.contains(" 200 ").then(|| body.to_owned())
}

/// Returns the `KubeletConfiguration` (`kubelet.config.k8s.io/v1beta1`). Omitted fields have kubelet's defaults.
fn configuration(runtime: &Path, plane: &RemoteControlPlane) -> Value {
    let resolvers = env::var_os(COREDNS).map_or(json!([]), |_| json!([ADDRESS]));
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{}", runtime.display()),
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true},
                           "x509": {"clientCAFile": plane.pki("ca.crt")}},
        "authorization": {"mode": "Webhook"},
        // the API server calls kubelet for `exec` and `logs`, and verifies kubelet's certificate
        "tlsCertFile": plane.pki(&format!("{}-server.crt", Member::this().name)),
        "tlsPrivateKeyFile": plane.pki(&format!("{}-server.key", Member::this().name)),
        // for the tests' requests, because a kubectl takes seconds
        "readOnlyPort": 10255,
        "cgroupDriver": if has_systemd() { "systemd" } else { "cgroupfs" },
        // the guest has no iptables, no resolver, and no disk at `/`
        "makeIPTablesUtilChains": false,
        "resolvConf": "",
        "clusterDNS": resolvers,
        "clusterDomain": DOMAIN,
        "localStorageCapacityIsolation": false,
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "failSwapOn": false,
    })
}
