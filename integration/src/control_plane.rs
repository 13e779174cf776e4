// SPDX-License-Identifier: Apache-2.0
//! Kubernetes' control plane itself: etcd, API server, controllers, scheduler.
//! `integration/kubernetes/build` makes the program.
//!
//! | module | owns |
//! |---|---|
//! | `kubectl` | what an operator and a test ask |
//! | `stand_in` | a node and pods without a kubelet |
//!
//! On this machine it is in a network namespace of its own ([`ControlPlane::start`]), and no kubelet runs:
//! [`ControlPlane::add_node`] makes a node that is ready, and [`ControlPlane::start_bound_pods`] says of its
//! pods what a kubelet would say. In the lab it is on the node ([`ControlPlane::start_on_node`]), and starts
//! from what a first start on this machine has left ([`ControlPlane::leave_seed`]): roles, namespaces, service
//! accounts and certificates take an emulated machine most of a minute.

mod kubectl;
mod stand_in;

pub(crate) use kubectl::succeeded;

use crate::{Netns, netns::check, wait};
use nix::sys::signal::Signal;
use std::{
    env,
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Names the program that `integration/kubernetes/build` made.
pub const PROGRAM: &str = "RDMA_KUBERNETES";

/// Names the program that `integration/helm/build` made, where Helm is wanted.
pub const HELM: &str = "RDMA_HELM";

/// Names the directory in which `cluster-seed` left what a control plane in the lab starts from.
pub const SEED: &str = "RDMA_LAB_CLUSTER";

/// The address by which the API server is announced: its namespace's own, or the node's.
pub const ADDRESS: &str = "10.99.0.1";

/// The port of the API server: that of its service, so that the service's address leads to it where the
/// node has that.
const PORT: u16 = 443;

/// The address of the API server's service. In the lab the node has it: there is no kube-proxy.
pub const SERVICE: &str = "10.96.0.1";

/// The node whose kubelet has certificates.
pub const NODE: &str = "node";

/// The API server's name as a program.
const API_SERVER: &str = "kube-apiserver";

/// As long as any of the programs may take to be ready, in an emulated machine with builds beside it.
const PATIENCE: Duration = Duration::from_secs(300);

/// As long as the controllers may take with what they make at a first start, once pods can be made.
const SETTLED: Duration = Duration::from_secs(3);

/// Collects garbage less often than Go does by itself: a quarter less of CPU time until all are ready (2.0
/// instead of 2.8 s on the host, measured), for a third more of memory.
pub(crate) const GC: (&str, &str) = ("GOGC", "400");

/// A control plane that runs; its programs are killed when it is dropped.
#[derive(Debug)]
pub struct ControlPlane {
    processes: Vec<(&'static str, Child)>,
    program: PathBuf,
    pki: PathBuf,
    /// Where an operator types commands.
    desk: PathBuf,
    directory: TempDir,
    netns: Netns,
}

impl ControlPlane {
    /// Starts one on this machine, without nodes; comes back when pods can be made.
    #[track_caller]
    pub fn start() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let pki = directory.path().join("pki");
        Self::start_in(directory, pki)
    }

    #[track_caller]
    fn start_in(directory: TempDir, pki: PathBuf) -> Self {
        let netns = Netns::new("control-plane");
        netns.ip("link set lo up");
        netns.ip(&format!("address add {ADDRESS}/32 dev lo"));
        let script = repository().join("integration/kubernetes/certificates");
        check(Command::new(script).arg(&pki).args([NODE, ADDRESS]));
        let mut plane = Self {
            processes: vec![],
            program: program(),
            pki,
            desk: repository(),
            directory,
            netns,
        };
        plane.run_all();
        plane
    }

    /// Makes in `directory`, which is not there, what [`Self::start_on_node`] starts from.
    #[track_caller]
    pub fn leave_seed(directory: &Path) {
        // the certificates are where they stay: kubeconfigs name them by absolute paths
        let work = TempDir::new().expect("a temporary directory");
        let mut plane = Self::start_in(work, directory.join("pki"));
        thread::sleep(SETTLED);
        plane.end();
        copy(&plane.etcd(), &directory.join("etcd"));
    }

    /// Starts one on the lab's node, which has [`ADDRESS`], from its seed. `desk` is where
    /// [`Self::shell`]'s commands are typed.
    #[track_caller]
    pub fn start_on_node(desk: PathBuf) -> Self {
        assert!(
            env::var_os("RDMA_LAB_TIER").is_some(),
            "this control plane is the lab's: scripts/test lab cluster"
        );
        let seed = env::var_os(SEED).map(PathBuf::from);
        let seed = seed.unwrap_or_else(|| panic!("{SEED} is not set: scripts/test lab cluster"));
        // a tmpfs: etcd maps its file into memory, and the program is read often
        let directory = TempDir::with_prefix_in("cluster.", "/run").expect("a directory");
        let at = |below: &str| directory.path().join(below);
        fs::create_dir(at("bin")).expect("a directory");
        fs::copy(program(), at("bin/kubernetes")).expect("the program");
        symlink("kubernetes", at("bin/kubectl")).expect("a name");
        if let Some(helm) = env::var_os(HELM) {
            fs::copy(helm, at("bin/helm")).expect("helm");
        }
        copy(&seed.join("etcd"), &at("etcd"));
        let mut plane = Self {
            processes: vec![],
            program: at("bin/kubernetes"),
            pki: seed.join("pki"),
            desk,
            directory,
            netns: Netns::own(),
        };
        plane.run_all();
        plane
    }

    /// The program that is all of Kubernetes'.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The file `name` of the certificates and kubeconfigs.
    pub fn pki(&self, name: &str) -> String {
        self.pki.join(name).display().to_string()
    }

    /// Where etcd has its data.
    fn etcd(&self) -> PathBuf {
        self.directory.path().join("etcd")
    }

    #[track_caller]
    fn run_all(&mut self) {
        self.run_etcd();
        self.run_api_server();
        self.run_proxy();
        self.until_ready();
        // not before: they give the API server ten seconds, and never work if that is not enough
        self.run_controllers();
        self.run_scheduler();
        self.until("namespaces have their service account", |it| {
            let account = "/api/v1/namespaces/default/serviceaccounts/default";
            it.ask(account).is_some()
        });
    }

    #[track_caller]
    fn until_ready(&mut self) {
        self.until("the API server is ready", |it| {
            it.ask("/readyz").is_some_and(|said| said == "ok")
        });
    }

    fn run_etcd(&mut self) {
        let arguments = [
            format!("--data-dir={}", self.etcd().display()),
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
            "--listen-client-urls=http://127.0.0.1:2379".into(),
            "--advertise-client-urls=http://127.0.0.1:2379".into(),
            "--listen-peer-urls=http://127.0.0.1:2380".into(),
        ];
        self.run("etcd", &arguments);
    }

    fn run_api_server(&mut self) {
        let file = |option: &str, name: &str| format!("--{option}={}", self.pki(name));
        let arguments = [
            "--etcd-servers=http://127.0.0.1:2379".into(),
            format!("--secure-port={PORT}"),
            format!("--advertise-address={ADDRESS}"),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
            "--authorization-mode=Node,RBAC".into(),
            "--enable-admission-plugins=NodeRestriction".into(),
            "--allow-privileged=true".into(),
            "--profiling=false".into(),
            file("client-ca-file", "ca.crt"),
            file("tls-cert-file", "apiserver.crt"),
            file("tls-private-key-file", "apiserver.key"),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            file("service-account-key-file", "sa.pub"),
            file("service-account-signing-key-file", "sa.key"),
            // `kubectl exec` and `logs`
            file("kubelet-client-certificate", "apiserver-kubelet.crt"),
            file("kubelet-client-key", "apiserver-kubelet.key"),
            file("kubelet-certificate-authority", "ca.crt"),
            "--kubelet-preferred-address-types=InternalIP".into(),
        ];
        self.run(API_SERVER, &arguments);
    }

    fn run_controllers(&mut self) {
        let arguments = [
            format!("--kubeconfig={}", self.pki("controller-manager.conf")),
            "--leader-elect=false".into(),
            "--use-service-account-credentials".into(),
            format!("--service-account-private-key-file={}", self.pki("sa.key")),
            format!("--root-ca-file={}", self.pki("ca.crt")),
            "--bind-address=127.0.0.1".into(),
            "--profiling=false".into(),
            // no kubelet sends heartbeats, or one on a machine that is slow at times
            "--node-monitor-grace-period=24h".into(),
        ];
        self.run("kube-controller-manager", &arguments);
    }

    fn run_scheduler(&mut self) {
        let arguments = [
            format!("--kubeconfig={}", self.pki("scheduler.conf")),
            "--leader-elect=false".into(),
            "--bind-address=127.0.0.1".into(),
            "--profiling=false".into(),
        ];
        self.run("kube-scheduler", &arguments);
    }

    /// What [`Self::ask`] asks: a question costs no start of a program.
    fn run_proxy(&mut self) {
        let arguments = [
            "proxy".into(),
            format!("--kubeconfig={}", self.pki("admin.conf")),
            format!("--unix-socket={}", self.proxy().display()),
        ];
        self.run("kubectl", &arguments);
    }

    fn proxy(&self) -> PathBuf {
        self.directory.path().join("proxy.sock")
    }

    fn run(&mut self, name: &'static str, arguments: &[String]) {
        let log = File::create(self.log(name)).expect("a log");
        let errors = log.try_clone().expect("a second handle");
        // the programs end with this process, even if that is killed
        let mut command = self.netns.command("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(&self.program);
        command.arg(name).args(arguments).env(GC.0, GC.1);
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        self.processes.push((name, child));
    }

    /// The API server ends by `signal` and starts again; comes back when it is ready.
    #[track_caller]
    pub fn restart_api_server(&mut self, signal: Signal) {
        let at = |(name, _): &(&str, Child)| *name == API_SERVER;
        let position = self.processes.iter().position(at).expect("it runs");
        let (name, mut process) = self.processes.remove(position);
        let ended = wait::ends(&mut process, signal, PATIENCE);
        assert!(ended, "{name} does not end by {signal}");
        self.run_api_server();
        self.until_ready();
    }

    /// Ends all in order: etcd, which the others need, at last.
    #[track_caller]
    fn end(&mut self) {
        while let Some((name, mut process)) = self.processes.pop() {
            let ended = wait::ends(&mut process, Signal::SIGTERM, PATIENCE);
            assert!(ended, "{name} does not end by SIGTERM");
        }
    }

    fn log(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.log"))
    }

    /// Its programs run; they were waited for until `yet`.
    #[track_caller]
    pub fn assert_runs(&mut self, yet: &str) {
        for (name, process) in &mut self.processes {
            let ended = process.try_wait().expect("our own child");
            assert!(ended.is_none(), "{name} ended ({ended:?}), not yet: {yet}");
        }
    }

    /// Waits for `done`; ends at once when one of the programs does.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            self.assert_runs(what);
            assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
            thread::sleep(Duration::from_millis(300));
        }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if thread::panicking() && !self.processes.is_empty() {
            for what in ["get daemonsets,pods -A -o wide", "get events -A"] {
                let shown = self.try_kubectl(what);
                eprintln!(
                    "kubectl {what}:\n{}",
                    String::from_utf8_lossy(&shown.stdout)
                );
            }
        }
        for (_, process) in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
        if thread::panicking() {
            for (name, _) in &self.processes {
                let log = fs::read_to_string(self.log(name)).unwrap_or_default();
                let lines: Vec<&str> = log
                    .lines()
                    .filter(|it| it.starts_with(['E', 'F']))
                    .collect();
                let last = &lines[lines.len().saturating_sub(5)..];
                eprintln!("{name}'s last errors:\n{}", last.join("\n"));
            }
        }
    }
}

#[track_caller]
fn program() -> PathBuf {
    let program = env::var_os(PROGRAM).map(PathBuf::from);
    program.unwrap_or_else(|| {
        panic!("{PROGRAM} is not set: integration/kubernetes/build makes the program, and prints where it is")
    })
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A directory as a whole; what is empty in a file takes no room.
#[track_caller]
fn copy(from: &Path, to: &Path) {
    let mut command = Command::new("cp");
    command.args(["--recursive", "--preserve=mode", "--sparse=always"]);
    check(command.arg(from).arg(to));
}
