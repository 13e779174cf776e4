// SPDX-License-Identifier: Apache-2.0
//! Real containerd in the lab: pods are its sandboxes with containers in them, and it is containerd
//! that calls CNI.
//!
//! | module | owns |
//! |---|---|
//! | [`cri`] | calls of the runtime's interface, as kubelet makes them |
//! | [`network`] | the node's CNI directories: plugins, one conflist |
//! | [`manifest`] | a DaemonSet and its ConfigMap as they are written, strictly |
//! | [`daemon_set`] | kubelet's part for a DaemonSet's pod: volumes, rights, init containers, probes |
//! | [`installed`] | a node whose daemon is such a pod, everything by its path on a node |
//! | [`pod`] | a pod's life: sandbox, containers, programs run in them, its end |
//! | [`shared`] | a node with bonded NICs, containerd, and the chain |
//! | [`traffic`] | RDMA between containers |
//!
//! `integration/lab/setup` has containerd, runc and the images in the lab's cache.

pub mod cri;
pub mod daemon_set;
pub mod installed;
pub mod manifest;
pub mod network;
pub mod pod;
pub mod shared;
pub mod traffic;

pub use daemon_set::DaemonPod;
pub use installed::InstalledNode;
pub use pod::{Container, Pod, PodSpec};
pub use shared::SharedNode;

use crate::wait;
use cri::Cri;
use network::Network;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;

/// The image of containers, unless they want another.
pub const TOOLS: &str = "localhost/tools:lab";

/// As long as containerd may take for its start in an emulated machine.
const TO_START: Duration = Duration::from_secs(90);

/// A containerd that runs; with its pods it ends when dropped.
#[derive(Debug)]
pub struct Containerd {
    /// The node's CNI directories.
    pub network: Network,
    process: Option<Child>,
    cri: Cri,
    programs: PathBuf,
    directory: TempDir,
}

/// Where a node's containerd keeps what outlives the boot.
pub const ROOT: &str = "/var/lib/containerd";

impl Containerd {
    /// One that finds CDI files in `cdi`. It has the lab's images, and no network yet.
    #[track_caller]
    pub fn start(cdi: &Path) -> Self {
        let directory = directory();
        let network = Network::new(&directory.path().join("cni"));
        let root = directory.path().join("root");
        Self::start_in(directory, &root, network, cdi)
    }

    /// The same with the node's own CNI directories, in which nothing of ours is.
    #[track_caller]
    pub fn start_on_node() -> Self {
        let directory = directory();
        let root = directory.path().join("root");
        let cdi = Path::new("/var/run/cdi");
        Self::start_in(directory, &root, Network::of_node(), cdi)
    }

    /// One as nodes have it: what outlives the boot is in [`ROOT`] and in CNI's usual directories,
    /// the rest on a tmpfs. It has the lab's images from its first start on.
    #[track_caller]
    pub fn start_on_disk(cdi: &Path) -> Self {
        let network = Network::of_node().with_ours();
        Self::start_in(directory(), Path::new(ROOT), network, cdi)
    }

    #[track_caller]
    fn start_in(directory: TempDir, root: &Path, network: Network, cdi: &Path) -> Self {
        let cache = env::var_os("RDMA_LAB_CACHE").map(PathBuf::from);
        let cache = cache.expect("containerd is in the lab: integration/lab/vm --memory 4096");
        let at = |below: &str| directory.path().join(below);
        let is_new = fs::read_dir(root).map_or(true, |mut it| it.next().is_none());
        let programs = cache.join("containerd/root/usr");
        let configuration = configuration([root, directory.path()], &network, cdi, &programs);
        fs::write(at("config.toml"), configuration).expect("the configuration");
        let mut containerd = Self {
            network,
            process: None,
            cri: Cri::new(&at("containerd.sock")),
            programs,
            directory,
        };
        containerd.come();
        for image in ["pause", "tools"].iter().filter(|_| is_new) {
            containerd.import(&cache.join(format!("images/{image}.tar")));
        }
        containerd
    }

    /// Its interface.
    pub fn cri(&self) -> &Cri {
        &self.cri
    }

    /// Starts the process, and waits until it answers.
    #[track_caller]
    pub fn come(&mut self) {
        assert!(self.process.is_none(), "containerd runs already");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .expect("a log");
        let mut command = Command::new(self.programs.join("bin/containerd"));
        command.arg("--config").arg(self.path("config.toml"));
        // where it looks for its shim
        command.env("PATH", self.search_path());
        let errors = log.try_clone().expect("a second handle");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let child = command.spawn();
        self.process = Some(child.unwrap_or_else(|error| panic!("{command:?}: {error}")));
        let came = wait::within(TO_START, || self.cri.is_ready("RuntimeReady"));
        assert!(
            came,
            "containerd does not answer within {TO_START:?}:\n{}",
            self.log()
        );
    }

    /// Ends the process by `signal`; pods live on, as their shims do.
    #[track_caller]
    pub fn go(&mut self, signal: Signal) {
        let mut process = self.process.take().expect("containerd runs");
        let pid = Pid::from_raw(i32::try_from(process.id()).expect("a pid"));
        kill(pid, signal).expect("a signal sent");
        let ended = wait::within(wait::PATIENCE, || {
            process.try_wait().expect("our own child").is_some()
        });
        if !ended {
            let _ = process.kill();
            let _ = process.wait();
            panic!("containerd does not end by {signal}:\n{}", self.log());
        }
    }

    /// Takes an image in.
    #[track_caller]
    pub fn import(&self, archive: &Path) {
        let mut command = Command::new(self.programs.join("bin/ctr"));
        command.arg("--address").arg(self.cri.socket());
        command.args(["--namespace", "k8s.io", "images", "import"]);
        crate::netns::check(command.arg(archive));
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join(below)
    }

    fn search_path(&self) -> String {
        let own = self.programs.join("bin");
        let before = env::var("PATH").unwrap_or_default();
        format!("{}:{before}", own.display())
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // what a failed test left: its shims would live on
        for pod in self.cri.pods().unwrap_or_default() {
            let _ = self.cri.remove(&pod.id);
        }
        if let Some(mut process) = self.process.take() {
            let pid = i32::try_from(process.id()).expect("a pid");
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            if !wait::within(wait::PATIENCE, || !matches!(process.try_wait(), Ok(None))) {
                let _ = process.kill();
                let _ = process.wait();
            }
        }
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(60)..];
            eprintln!("containerd said at last:\n{}", last.join("\n"));
        }
    }
}

/// Overlayfs does not stack on the guest's `/`, but on the tmpfs that `/run` is.
#[track_caller]
fn directory() -> TempDir {
    let mut builder = tempfile::Builder::new();
    let directory = builder.prefix("containerd.").tempdir_in("/run");
    directory.expect("a temporary directory")
}

/// Its configuration file (`man containerd-config.toml`, `docs/cri/config.md` of containerd).
fn configuration(
    [root, directory]: [&Path; 2],
    network: &Network,
    cdi: &Path,
    programs: &Path,
) -> String {
    let at = |below: &str| directory.join(below).display().to_string();
    let (root, state, socket) = (root.display(), at("state"), at("containerd.sock"));
    let (plugins, lists) = (network.plugins().display(), network.lists().display());
    let (cdi, runc) = (cdi.display(), programs.join("sbin/runc"));
    let runc = runc.display();
    format!(
        r#"version = 2
root = "{root}"
state = "{state}"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:lab"
  disable_apparmor = true
  enable_cdi = true
  cdi_spec_dirs = ["{cdi}"]
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{lists}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{runc}"
"#
    )
}
