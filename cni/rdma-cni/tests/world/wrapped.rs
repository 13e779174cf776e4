// SPDX-License-Identifier: Apache-2.0
//! A wrapper of the fake kernel: it hides a path or the hardware of netdevs, and observes queries of all ports.

use crate::node::{Answer, Node, Pod};
use fake_kernel::{FakeKernel, FakePod};
use nix::errno::Errno;
use rdma_netns::{
    Conflict, DeviceAddress, DeviceSettings, GidTable, Kernel, Link, Neighbour, ObservationScope,
    ObserveError, Observed, Op, OpError, OpenPodError, Pkey, ProbeError, Probed, Question, Vf,
    smc::SmcState,
};
use serde_json::Value;
use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// A kernel that differs from the fake kernel in these fields.
pub(crate) struct Wrapped<'a> {
    pub(crate) kernel: &'a FakeKernel,
    /// A path that cannot be opened at the moment.
    pub(crate) unreadable: Option<PathBuf>,
    /// True if no netdev has a parent: the kernel does not report the hardware of netdevs.
    pub(crate) busless: bool,
    /// The node's lock, which must be free while all ports are queried.
    pub(crate) lock: Option<PathBuf>,
    pub(crate) asks_all: AtomicBool,
    /// Callback for the first time that all ports are queried.
    pub(crate) meanwhile: Box<dyn Fn() + 'a>,
    /// Number of times that all ports were queried.
    pub(crate) all: AtomicUsize,
}

impl<'a> Wrapped<'a> {
    pub(crate) fn new(node: &'a Node) -> Self {
        Self {
            kernel: &node.kernel,
            unreadable: None,
            busless: false,
            lock: None,
            asks_all: AtomicBool::new(true),
            meanwhile: Box::new(|| ()),
            all: AtomicUsize::new(0),
        }
    }

    pub(crate) fn run(
        &self,
        node: &Node,
        command: &str,
        pod: Option<&Pod>,
        config: &Value,
    ) -> Answer {
        let mut output = vec![];
        node.run_on(self, command, pod, config, None, &mut output);
        let value = serde_json::from_slice(&output).unwrap_or(Value::Null);
        Answer { value }
    }
}

impl Kernel for Wrapped<'_> {
    type Pod = FakePod;

    fn boot_id(&self) -> Result<String, ObserveError> {
        self.kernel.boot_id()
    }

    fn open_pod(&self, path: &Path) -> Result<FakePod, OpenPodError> {
        if self.unreadable.as_deref() == Some(path) {
            return Err(OpenPodError::Io {
                path: path.to_owned(),
                source: io::Error::from_raw_os_error(Errno::EMFILE as i32),
            });
        }
        self.kernel.open_pod(path)
    }

    fn limit_observation(&self, scope: Option<ObservationScope>) -> Option<ObservationScope> {
        self.asks_all.store(scope.is_none(), Ordering::Relaxed);
        self.kernel.limit_observation(scope)
    }

    fn manages_nvlink(&self, address: &DeviceAddress) -> bool {
        self.kernel.manages_nvlink(address)
    }

    fn vf(&self, function: &DeviceAddress) -> Result<Option<Vf>, ObserveError> {
        self.kernel.vf(function)
    }

    fn device_settings(&self, link: &Link) -> DeviceSettings {
        self.kernel.device_settings(link)
    }

    fn observe(&self, pod: Option<&FakePod>) -> Result<Observed, ObserveError> {
        if self.asks_all.load(Ordering::Relaxed) {
            let is_first = self.all.fetch_add(1, Ordering::Relaxed) == 0;
            let lock = self.lock.iter().flat_map(File::open).next();
            let is_held = lock.is_some_and(|lock| lock.try_lock_shared().is_err());
            assert!(!is_held, "other pods wait for all ports");
            if is_first {
                (self.meanwhile)();
                self.kernel.limit_observation(None);
            }
        }
        let mut observed = self.kernel.observe(pod)?;
        if self.busless {
            observed.devices.clear();
            for namespace in [Some(&mut observed.host), observed.pod.as_mut()] {
                let links = namespace.into_iter().flat_map(|it| &mut it.links);
                links.for_each(|link| link.parent = None);
            }
        }
        Ok(observed)
    }

    fn gids(
        &self,
        pod: Option<&FakePod>,
        device: &str,
        port: u32,
    ) -> Result<GidTable, ObserveError> {
        self.kernel.gids(pod, device, port)
    }

    fn partitions(&self, device: &str, port: u32) -> Result<Vec<Pkey>, ObserveError> {
        self.kernel.partitions(device, port)
    }

    fn now(&self) -> Instant {
        self.kernel.now()
    }

    fn uptime(&self) -> u64 {
        self.kernel.uptime()
    }

    fn pause(&self, time: Duration) {
        self.kernel.pause(time);
    }

    fn has_smc(&self) -> bool {
        self.kernel.has_smc()
    }

    fn smc(&self, pod: Option<&FakePod>) -> Result<Option<SmcState>, ObserveError> {
        self.kernel.smc(pod)
    }

    fn is_watched(&self) -> bool {
        self.kernel.is_watched()
    }

    fn neighbours(&self) -> Result<Vec<Neighbour>, ObserveError> {
        self.kernel.neighbours()
    }

    fn probe(&self, pod: &FakePod, questions: &[Question]) -> Result<Probed, ProbeError> {
        self.kernel.probe(pod, questions)
    }

    fn conflicts_since_probe(
        &self,
        pod: &FakePod,
        questions: &[Question],
    ) -> Result<Vec<Conflict>, ProbeError> {
        self.kernel.conflicts_since_probe(pod, questions)
    }

    fn execute(&self, op: &Op, pod: Option<&FakePod>) -> Result<(), OpError> {
        self.kernel.execute(op, pod)
    }

    fn execute_as_observed(
        &self,
        op: &Op,
        pod: Option<&FakePod>,
        observed: &Observed,
    ) -> Result<(), OpError> {
        self.kernel.execute_as_observed(op, pod, observed)
    }
}
