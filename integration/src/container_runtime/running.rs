// SPDX-License-Identifier: Apache-2.0
//! A running container runtime: its start, its end, and the import of images.

use super::{cri::Cri, engine::Engine, network::Network, place::Place};
use crate::wait;
use nix::sys::signal::Signal;
use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};
use tempfile::TempDir;

/// Time limit for a runtime's start in an emulated machine.
const TO_START: Duration = Duration::from_secs(240);

/// A running runtime. Drop ends the runtime and its pods.
#[derive(Debug)]
pub struct ContainerRuntime {
    /// CNI directories of the runtime.
    pub network: Network,
    engine: Engine,
    process: Option<Child>,
    cri: Cri,
    place: Place,
    directory: TempDir,
}

/// Directory in which the runtime of a node with a disk keeps state across boots.
pub const ROOT: &str = "/var/lib/containerd";

impl ContainerRuntime {
    /// Starts a runtime that reads CDI files in `cdi`. It has the lab's images, and no conflist yet.
    #[track_caller]
    pub fn start(cdi: &Path) -> Self {
        let directory = directory();
        let network = Network::new(&directory.path().join("cni"));
        let root = directory.path().join("root");
        Self::start_in(directory, &root, network, cdi)
    }

    /// Starts a runtime like [`Self::start`], with the node's own CNI directories. They do not have our plugins.
    #[track_caller]
    pub fn start_on_node() -> Self {
        let directory = directory();
        let root = directory.path().join("root");
        let cdi = Path::new("/var/run/cdi");
        Self::start_in(directory, &root, Network::of_node(), cdi)
    }

    /// Starts a runtime as on a node: [`ROOT`] and CNI's usual directories have the state that survives a boot, a tmpfs
    /// has the other state. At its first start the runtime gets the lab's images.
    #[track_caller]
    pub fn start_on_disk(cdi: &Path) -> Self {
        let network = Network::of_node().with_ours();
        Self::start_in(directory(), Path::new(ROOT), network, cdi)
    }

    /// Starts a runtime like [`Self::start_on_disk`], without our plugins in CNI's directories.
    #[track_caller]
    pub fn start_on_nodes_disk() -> Self {
        let cdi = Path::new("/var/run/cdi");
        Self::start_in(directory(), Path::new(ROOT), Network::of_node(), cdi)
    }

    #[track_caller]
    fn start_in(directory: TempDir, root: &Path, network: Network, cdi: &Path) -> Self {
        let cache = env::var_os("RDMA_LAB_CACHE").map(PathBuf::from);
        let cache = cache.expect("it is in the lab: integration/lab/vm --memory 4096");
        let is_new = fs::read_dir(root).map_or(true, |mut it| it.next().is_none());
        let engine = Engine::of_the_lab();
        let place = Place {
            programs: engine.programs(&cache),
            runc: cache.join("containerd/root/usr/sbin/runc"),
            root: root.to_owned(),
            directory: directory.path().to_owned(),
            cdi: cdi.to_owned(),
        };
        engine.configure(&place, &network);
        let mut runtime = Self {
            network,
            engine,
            process: None,
            cri: Cri::new(&place.socket()),
            place,
            directory,
        };
        runtime.come();
        for image in ["pause", "tools"].iter().filter(|_| is_new) {
            runtime.import(&cache.join(format!("images/{image}.tar")));
        }
        runtime
    }

    /// Returns the runtime's program.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Returns the client of the runtime's interface.
    pub fn cri(&self) -> &Cri {
        &self.cri
    }

    /// Starts the runtime's process, and waits until it answers.
    #[track_caller]
    pub fn come(&mut self) {
        assert!(self.process.is_none(), "it runs already");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .expect("a log");
        let mut command = self.engine.command(&self.place);
        let errors = log.try_clone().expect("a second handle");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let child = command.spawn();
        self.process = Some(child.unwrap_or_else(|error| panic!("{command:?}: {error}")));
        let came = wait::within(TO_START, || self.cri.is_ready("RuntimeReady"));
        assert!(
            came,
            "{:?} does not answer within {TO_START:?}:\n{}",
            self.engine,
            self.log()
        );
    }

    /// Ends the runtime's process by `signal`. Pods continue to run, because their shims and monitors do.
    #[track_caller]
    pub fn go(&mut self, signal: Signal) {
        let mut process = self.process.take().expect("it runs");
        let ended = wait::ends(&mut process, signal, wait::TIMEOUT);
        assert!(
            ended,
            "{:?} does not end by {signal}:\n{}",
            self.engine,
            self.log()
        );
    }

    /// Imports an image under the name that its archive contains.
    #[track_caller]
    pub fn import(&self, archive: &Path) {
        crate::netns::check(&mut self.engine.import(&self.place, archive));
    }

    /// Returns the runtime's log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join(below)
    }
}

impl Drop for ContainerRuntime {
    fn drop(&mut self) {
        // a failed test leaves pods, whose processes would otherwise continue
        self.cri.remove_all(|_| true);
        if let Some(mut process) = self.process.take() {
            wait::ends(&mut process, Signal::SIGTERM, wait::TIMEOUT);
        }
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(60)..];
            eprintln!("the last lines of {:?}:\n{}", self.engine, last.join("\n"));
        }
    }
}

/// Makes a directory on the tmpfs of `/run`, because overlayfs does not stack on the guest's `/`.
#[track_caller]
fn directory() -> TempDir {
    let mut builder = tempfile::Builder::new();
    let directory = builder.prefix("runtime.").tempdir_in("/run");
    directory.expect("a temporary directory")
}
