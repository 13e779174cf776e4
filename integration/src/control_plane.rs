// SPDX-License-Identifier: Apache-2.0
//! Kubernetes' control plane itself: etcd, API server, controllers, scheduler.
//! `integration/kubernetes/build` makes the program.
//!
//! | module | owns |
//! |---|---|
//! | `kubectl` | commands and requests of an operator and a test |
//! | `stand_in` | a node and pods without a kubelet |
//! | [`server`] | a control plane outside the lab's machines, for the nodes in them |
//! | `remote` | access of a node's tests to that control plane |
//! | `messages` | messages between `server` and `remote` |
//! | `site` | the namespace and directories of a control plane |
//! | [`nodes`] | the machines that can be nodes |
//!
//! The control plane runs on this machine, in a network namespace of its own. Without the lab ([`ControlPlane::start`]) no
//! kubelet runs: [`ControlPlane::add_node`] makes a node that is ready, and [`ControlPlane::start_bound_pods`] reports of
//! its pods what a kubelet would report. The nodes of a cluster in the lab are virtual machines with a NIC on a bridge in
//! that namespace. In an emulated machine, the control plane and `kubectl` would take eight times the CPU time.

mod kubectl;
mod messages;
pub mod nodes;
mod remote;
pub mod server;
mod site;
mod stand_in;

pub(crate) use kubectl::succeeded;
pub use remote::RemoteControlPlane;

use crate::wait;
use nix::sys::signal::Signal;
use site::Site;
use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Names the program that `integration/kubernetes/build` made.
pub const PROGRAM: &str = "RDMA_KUBERNETES";

/// Names the program that `integration/helm/build` made, where Helm is wanted.
pub const HELM: &str = "RDMA_HELM";

/// Names the program that `integration/coredns/build` made, in clusters whose pods resolve names of services.
pub const COREDNS: &str = "RDMA_COREDNS";

/// The domain of the cluster's names.
pub(crate) const DOMAIN: &str = "cluster.local";

/// The address by which the API server is announced: its namespace's own.
pub const ADDRESS: &str = "10.99.0.1";

/// The port of the API server: that of its service, so that the service's address leads to it where it is routed to
/// [`ADDRESS`].
const PORT: u16 = 443;

/// The address of the API server's service. There is no kube-proxy: the lab's nodes have a route to it.
pub const SERVICE: &str = "10.96.0.1";

/// No kubelet sends heartbeats, or one on a machine that is slow at times.
const NEVER_LOST: &str = "24h";

/// The API server's name as a program.
const API_SERVER: &str = "kube-apiserver";

/// Limit until any of the programs is ready, in an emulated machine with builds beside it.
const PATIENCE: Duration = Duration::from_secs(300);

/// Collects garbage less often than Go does by itself: a quarter less of CPU time until all are ready (2.0
/// instead of 2.8 s on the host, measured), for a third more of memory.
pub(crate) const GC: (&str, &str) = ("GOGC", "400");

/// A control plane that runs; its programs are killed when it is dropped.
#[derive(Debug)]
pub struct ControlPlane {
    processes: Vec<(&'static str, Child)>,
    program: PathBuf,
    /// Directory in which an operator runs commands.
    desk: PathBuf,
    directory: TempDir,
    site: Arc<Site>,
    lost: &'static str,
}

impl ControlPlane {
    /// Starts one on this machine, without nodes; comes back when pods can be made.
    #[track_caller]
    pub fn start() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let site = Arc::new(Site::new(&directory.path().join("pki")));
        Self::start_at(site, directory, repository(), NEVER_LOST)
    }

    /// Starts one at `site`, where none runs, with nothing in it. `desk` is where [`Self::shell`]'s commands are typed;
    /// a node that sends nothing for as long as `lost` is not ready any more.
    #[track_caller]
    fn start_at(site: Arc<Site>, directory: TempDir, desk: PathBuf, lost: &'static str) -> Self {
        let mut plane = Self {
            processes: vec![],
            program: program(),
            desk,
            directory,
            site,
            lost,
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
        self.site.pki(name)
    }

    /// Returns etcd's data directory.
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
        self.run_coredns();
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
            format!("--node-monitor-grace-period={}", self.lost),
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

    /// Starts the resolver of pods' names, where there is one, at [`ADDRESS`].
    fn run_coredns(&mut self) {
        let Some(program) = env::var_os(COREDNS) else {
            return;
        };
        let corefile = self.directory.path().join("Corefile");
        let kubeconfig = self.pki("admin.conf");
        let text = format!(
            "{DOMAIN}:53 {{\n  errors\n  kubernetes {{\n    kubeconfig {kubeconfig}\n  }}\n}}\n"
        );
        fs::write(&corefile, text).expect("a file");
        let mut command = self.command_of(Path::new(&program));
        command.arg("-conf").arg(corefile);
        self.spawn("coredns", command);
    }

    /// Starts the proxy to which [`Self::ask`] sends requests: a request then starts no program.
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
        let mut command = self.command_of(&self.program);
        command.arg(name).args(arguments).env(GC.0, GC.1);
        self.spawn(name, command);
    }

    /// A program of the control plane: it ends with this process, even if this process is killed.
    fn command_of(&self, program: &Path) -> Command {
        let mut command = self.site.netns().command("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program);
        command
    }

    fn spawn(&mut self, name: &'static str, mut command: Command) {
        let log = File::create(self.log(name)).expect("a log");
        let errors = log.try_clone().expect("a second handle");
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

    fn log(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.log"))
    }

    /// Returns the last errors of its programs.
    fn last_errors(&self) -> String {
        let mut told = String::new();
        for (name, _) in &self.processes {
            let log = fs::read_to_string(self.log(name)).unwrap_or_default();
            let is_bad = |it: &&str| it.starts_with(['E', 'F']);
            let lines: Vec<&str> = log.lines().filter(is_bad).collect();
            let last = &lines[lines.len().saturating_sub(5)..];
            told.push_str(&format!("{name}'s last errors:\n{}\n", last.join("\n")));
        }
        told
    }

    /// Asserts that the control plane's programs run. `yet` is the state that the caller waits for.
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
            eprintln!("{}", self.last_errors());
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
