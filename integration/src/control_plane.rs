// SPDX-License-Identifier: Apache-2.0
//! Kubernetes' real control plane: etcd, API server, controllers, scheduler. `integration/kubernetes/build` builds the
//! program.
//!
//! | module | owns |
//! |---|---|
//! | `kubectl` | commands of an operator, requests of a test |
//! | [`kubeconfig`] | kubeconfigs of other projects' plugins |
//! | `stand_in` | a node and its pods without a kubelet |
//! | [`server`] | a control plane outside of the lab's machines, which are its nodes |
//! | `remote` | access of a node's tests to that control plane |
//! | `messages` | messages between `server` and `remote` |
//! | `site` | the namespace and directories of a control plane |
//! | [`nodes`] | the machines that can be nodes |
//!
//! The control plane runs on this machine, in a separate network namespace. Outside the lab ([`ControlPlane::start`])
//! no kubelet runs: [`ControlPlane::add_node`] makes a ready node, and [`ControlPlane::start_bound_pods`] sets the
//! status of its pods as a kubelet would. In the lab, a cluster's nodes are virtual machines with a NIC on a bridge in
//! this namespace. The control plane is not in these machines, in which control plane and `kubectl` would need eight
//! times the CPU time.

pub mod kubeconfig;
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

/// Environment variable that names the program that `integration/kubernetes/build` has built.
pub const PROGRAM: &str = "RDMA_KUBERNETES";

/// Environment variable that names the program that `integration/helm/build` has built. Only tests that use Helm need
/// it.
pub const HELM: &str = "RDMA_HELM";

/// Environment variable that names the program that `integration/coredns/build` has built. Only clusters whose pods
/// resolve names of services need it.
pub const COREDNS: &str = "RDMA_COREDNS";

/// DNS domain of the cluster.
pub(crate) const DOMAIN: &str = "cluster.local";

/// Address of the API server in its namespace.
pub const ADDRESS: &str = "10.99.0.1";

/// Port of the API server. The service has the same port, because nodes route the service's address to [`ADDRESS`].
const PORT: u16 = 443;

/// Address of the API server's service. No kube-proxy runs: the lab's nodes have a route to this address.
pub const SERVICE: &str = "10.96.0.1";

/// Time without heartbeats after which a node counts as lost. It is long because no kubelet runs, or because kubelet's
/// machine is slow at times.
const NEVER_LOST: &str = "24h";

const API_SERVER: &str = "kube-apiserver";

/// Time limit for each wait for a state of the control plane, and for a program's end, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Makes Go collect garbage less often than by default. This saves a quarter of the CPU time until all programs are
/// ready (2.0 s instead of 2.8 s, measured on the host), and costs a third more memory.
pub(crate) const GC: (&str, &str) = ("GOGC", "400");

/// A running control plane. Drop kills its programs.
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
    /// Starts a control plane without nodes on this machine. Returns when pods can be created.
    #[track_caller]
    pub fn start() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let site = Arc::new(Site::new(&directory.path().join("pki")));
        Self::start_at(site, directory, repository(), NEVER_LOST)
    }

    /// Starts an empty control plane at `site`, where no other control plane runs. The commands of [`Self::shell`] run
    /// in `desk`. A node that sends no heartbeat for `lost` becomes not ready.
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

    /// Returns the path of the program that contains all programs of Kubernetes.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the path of the file `name` among the certificates and kubeconfigs.
    pub fn pki(&self, name: &str) -> String {
        self.site.pki(name)
    }

    fn etcd(&self) -> PathBuf {
        self.directory.path().join("etcd")
    }

    #[track_caller]
    fn run_all(&mut self) {
        self.run_etcd();
        self.run_api_server();
        self.run_proxy();
        self.until_ready();
        // the controllers start now: they wait ten seconds for the API server, and never work if it needs longer
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
            it.ask("/readyz").is_some_and(|answer| answer == "ok")
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
            // for `kubectl exec` and `logs`
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

    /// Starts the DNS server of the cluster at [`ADDRESS`]. Does nothing if [`COREDNS`] is not set.
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

    /// Starts the proxy to which [`Self::ask`] sends requests. So a request needs no new program.
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

    /// Returns the command of a program of the control plane. The program ends with this process, even if this process
    /// is killed.
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

    /// Ends the API server by `signal`, and starts it again. Returns when it is ready.
    #[track_caller]
    pub fn restart_api_server(&mut self, signal: Signal) {
        let at = |(name, _): &(&str, Child)| *name == API_SERVER;
        let position = self.processes.iter().position(at).expect("it runs");
        let (name, mut process) = self.processes.remove(position);
        let ended = wait::ends(&mut process, signal, TIMEOUT);
        assert!(ended, "{name} does not end by {signal}");
        self.run_api_server();
        self.until_ready();
    }

    fn log(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.log"))
    }

    /// Returns the last errors of the control plane's programs.
    fn last_errors(&self) -> String {
        let mut errors = String::new();
        for (name, _) in &self.processes {
            let log = fs::read_to_string(self.log(name)).unwrap_or_default();
            let is_bad = |it: &&str| it.starts_with(['E', 'F']);
            let lines: Vec<&str> = log.lines().filter(is_bad).collect();
            let last = &lines[lines.len().saturating_sub(5)..];
            errors.push_str(&format!("{name}'s last errors:\n{}\n", last.join("\n")));
        }
        errors
    }

    /// Asserts that the control plane's programs run. `yet` is the state for which the caller waits.
    #[track_caller]
    pub fn assert_runs(&mut self, yet: &str) {
        for (name, process) in &mut self.processes {
            let ended = process.try_wait().expect("our own child");
            assert!(ended.is_none(), "{name} ended ({ended:?}), not yet: {yet}");
        }
    }

    /// Waits until `done` returns true. Panics as soon as a program of the control plane ends, and at a time limit.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !done(self) {
            self.assert_runs(what);
            assert!(Instant::now() < end, "not within {TIMEOUT:?}: {what}");
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
