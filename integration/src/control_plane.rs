//! Kubernetes' control plane itself: etcd, API server, controllers, scheduler, in a network
//! namespace of their own. `integration/kubernetes/build` makes the program.
//!
//! No kubelet runs. [`ControlPlane::add_node`] makes a node that is ready, and
//! [`ControlPlane::start_bound_pods`] says of its pods what a kubelet would say.

use crate::{Netns, netns::check, wait};
use serde_json::{Value, json};
use std::{
    env,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// Names the program that `integration/kubernetes/build` made.
pub const PROGRAM: &str = "RDMA_KUBERNETES";

/// The address by which the API server is announced; nobody but its own namespace reaches it.
const ADDRESS: &str = "10.99.0.1";

/// As long as any of the programs may take to be ready, with builds beside it.
const PATIENCE: Duration = Duration::from_secs(120);

/// A control plane that runs; its programs are killed when it is dropped.
#[derive(Debug)]
pub struct ControlPlane {
    processes: Vec<(&'static str, Child)>,
    program: PathBuf,
    directory: TempDir,
    netns: Netns,
}

impl ControlPlane {
    /// Starts one, without nodes; comes back when pods can be made.
    #[track_caller]
    pub fn start() -> Self {
        let program = env::var_os(PROGRAM).map(PathBuf::from);
        let program = program.unwrap_or_else(|| {
            panic!("{PROGRAM} is not set: integration/kubernetes/build makes the program, and prints where it is")
        });
        let directory = TempDir::new().expect("a temporary directory");
        let netns = Netns::new("control-plane");
        netns.ip("link set lo up");
        netns.ip(&format!("address add {ADDRESS}/32 dev lo"));
        let certificates = Path::new(env!("CARGO_MANIFEST_DIR")).join("kubernetes/certificates");
        check(
            Command::new(certificates)
                .arg(directory.path().join("pki"))
                .args(["node", ADDRESS]),
        );
        let mut plane = Self {
            processes: vec![],
            program,
            directory,
            netns,
        };
        plane.run_etcd();
        plane.run_api_server();
        plane.until("the API server is ready", |it| {
            it.try_kubectl("get --raw /readyz").status.success()
        });
        // not before: they give the API server ten seconds, and never work if that is not enough
        plane.run_controllers();
        plane.run_scheduler();
        plane.until("namespaces have their service account", |it| {
            let account = it.try_kubectl("get serviceaccount default");
            account.status.success()
        });
        plane
    }

    /// `program`, to be run where the API server is reached.
    pub fn command(&self, program: &Path) -> Command {
        self.netns.command(program)
    }

    /// Address and port of the API server, as pods of a cluster have them in their environment.
    pub fn address(&self) -> (&'static str, &'static str) {
        (ADDRESS, "6443")
    }

    /// By which the API server is known: PEM.
    pub fn ca(&self) -> String {
        fs::read_to_string(self.pki("ca.crt")).expect("a certificate")
    }

    /// `kubectl LINE` as whoever has `token`, and nothing else.
    pub fn kubectl_as(&self, token: &str, line: &str) -> Output {
        let mut command = self.netns.command(&self.program);
        command.arg("kubectl").args(line.split_whitespace());
        let (host, port) = self.address();
        command.args([
            "--token",
            token,
            "--server",
            &format!("https://{host}:{port}"),
        ]);
        command.args(["--certificate-authority", &self.pki("ca.crt")]);
        command
            .env("KUBECONFIG", "/dev/null")
            .env("HOME", self.directory.path());
        command.output().expect("kubectl runs")
    }

    /// The file `name` of the certificates and kubeconfigs.
    fn pki(&self, name: &str) -> String {
        let path = self.directory.path().join("pki").join(name);
        path.display().to_string()
    }

    fn run_etcd(&mut self) {
        let data = self.directory.path().join("etcd");
        let arguments = [
            format!("--data-dir={}", data.display()),
            "--unsafe-no-fsync".into(),
            "--log-level=warn".into(),
            "--listen-client-urls=http://127.0.0.1:2379".into(),
            "--advertise-client-urls=http://127.0.0.1:2379".into(),
            "--listen-peer-urls=http://127.0.0.1:2380".into(),
        ];
        self.run("etcd", &arguments);
    }

    fn run_api_server(&mut self) {
        let arguments = [
            "--etcd-servers=http://127.0.0.1:2379".into(),
            "--secure-port=6443".into(),
            format!("--advertise-address={ADDRESS}"),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
            "--authorization-mode=Node,RBAC".into(),
            "--allow-privileged=true".into(),
            "--profiling=false".into(),
            format!("--client-ca-file={}", self.pki("ca.crt")),
            format!("--tls-cert-file={}", self.pki("apiserver.crt")),
            format!("--tls-private-key-file={}", self.pki("apiserver.key")),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            format!("--service-account-key-file={}", self.pki("sa.pub")),
            format!("--service-account-signing-key-file={}", self.pki("sa.key")),
        ];
        self.run("kube-apiserver", &arguments);
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
            // no kubelet sends heartbeats
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

    fn run(&mut self, name: &'static str, arguments: &[String]) {
        let log = File::create(self.log(name)).expect("a log");
        let errors = log.try_clone().expect("a second handle");
        // the programs end with this process, even if that is killed
        let mut command = self.netns.command("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(&self.program);
        command.arg(name).args(arguments);
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        self.processes.push((name, child));
    }

    fn log(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.log"))
    }

    /// Waits for `done`; ends at once when one of the programs does.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let is_done = wait::within(PATIENCE, || {
            for (name, process) in &mut self.processes {
                let ended = process.try_wait().expect("our own child");
                assert!(ended.is_none(), "{name} ended ({ended:?}), not yet: {what}");
            }
            thread::sleep(Duration::from_millis(100));
            done(self)
        });
        assert!(is_done, "not within {PATIENCE:?}: {what}");
    }

    /// `kubectl LINE`, split at white space, as an administrator.
    pub fn try_kubectl(&self, line: &str) -> Output {
        self.kubectl_with(line, "")
    }

    /// `kubectl LINE`; it must succeed. What it printed.
    #[track_caller]
    pub fn kubectl(&self, line: &str) -> String {
        self.apply(line, "")
    }

    /// `kubectl LINE` with `input` on its standard input; it must succeed. What it printed.
    #[track_caller]
    pub fn apply(&self, line: &str, input: &str) -> String {
        let output = self.kubectl_with(line, input);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {line}: {errors}");
        String::from_utf8(output.stdout).expect("kubectl prints UTF-8")
    }

    /// `kubectl LINE` with `input` on its standard input.
    pub fn kubectl_with(&self, line: &str, input: &str) -> Output {
        let mut command = self.netns.command(&self.program);
        command.arg("kubectl").args(line.split_whitespace());
        self.as_administrator(&mut command);
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl starts");
        let mut stdin = child.stdin.take().expect("its standard input");
        // one that reads nothing ends first
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        child.wait_with_output().expect("kubectl ends")
    }

    /// A command line as an operator types it into a shell, in the repository; it must succeed.
    #[track_caller]
    pub fn shell(&self, line: &str) {
        let programs = self.program.parent().expect("a directory");
        let path = env::var("PATH").unwrap_or_default();
        let mut command = self.netns.command("sh");
        command.args(["-e", "-c", line]);
        command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
        command.env("PATH", format!("{}:{path}", programs.display()));
        check(self.as_administrator(&mut command));
    }

    fn as_administrator<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("KUBECONFIG", self.pki("admin.conf"));
        // discovery is remembered there, and is not another cluster's
        command.env("HOME", self.directory.path())
    }

    /// The objects of `kubectl get WHAT`.
    #[track_caller]
    pub fn get(&self, what: &str) -> Vec<Value> {
        let text = self.kubectl(&format!("get {what} -o json"));
        let mut list: Value = serde_json::from_str(&text).expect("kubectl prints JSON");
        match list["items"].take() {
            Value::Array(items) => items,
            _ => vec![list],
        }
    }

    /// A node that is ready and has `resources` besides CPU, memory and room for pods. No
    /// kubelet runs there.
    #[track_caller]
    pub fn add_node(&mut self, name: &str, resources: &[(&str, &str)]) {
        let labels = json!({"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
        self.apply("apply -f -", &node.to_string());
        let mut has = json!({"cpu": "64", "memory": "256Gi", "pods": "110"});
        for (resource, count) in resources {
            has[resource] = json!(count);
        }
        let ready =
            json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""});
        let addresses = [json!({"type": "InternalIP", "address": ADDRESS})];
        let status = json!({"status": {
            "capacity": has, "allocatable": has, "addresses": addresses, "conditions": [ready],
        }});
        self.patch_status(&format!("node {name}"), &status);
        // as soon as the controllers have seen that it is ready
        self.until("the node takes pods", |it| {
            it.get(&format!("node {name}"))[0]["spec"]["taints"].is_null()
        });
    }

    /// What a kubelet would do once: pods that are bound to nodes run and are ready, those that
    /// are being deleted are gone.
    #[track_caller]
    pub fn start_bound_pods(&self) {
        for pod in self.get("pods -A") {
            let name = format!(
                "-n {} {}",
                pod["metadata"]["namespace"].as_str().expect("a namespace"),
                pod["metadata"]["name"].as_str().expect("a name"),
            );
            if pod["spec"]["nodeName"].is_null() {
                continue;
            }
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                self.kubectl(&format!("delete pod {name} --force --grace-period=0"));
            } else if pod["status"]["phase"] == "Pending" {
                // ready for long: a DaemonSet may want that (`minReadySeconds`)
                let since = "2026-01-01T00:00:00Z";
                let conditions = ["Initialized", "ContainersReady", "Ready"]
                    .map(|it| json!({"type": it, "status": "True", "lastTransitionTime": since}));
                let status = json!({"status": {"phase": "Running", "conditions": conditions}});
                self.patch_status(&format!("pod {name}"), &status);
            }
        }
    }

    #[track_caller]
    fn patch_status(&self, object: &str, status: &Value) {
        let file = self.directory.path().join("patch.json");
        fs::write(&file, status.to_string()).expect("a patch");
        self.kubectl(&format!(
            "patch {object} --subresource=status --type=merge --patch-file={}",
            file.display()
        ));
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if thread::panicking() {
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
