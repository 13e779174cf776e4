//! The fake kernel with something in between: what it cannot tell, or tells of other
//! hardware.

use crate::node::{Answer, Node, Pod};
use fake_kernel::{FakeKernel, FakePod};
use nix::errno::Errno;
use rdma_netns::{
    Conflict, DeviceAddress, GidTable, Kernel, Neighbour, ObserveError, Observed, Op, OpError,
    OpenPodError, ProbeError, Probed, Question, smc::SmcState,
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

/// A kernel that is the fake one but for this.
#[derive(Debug)]
pub(crate) struct Wrapped<'a> {
    pub(crate) kernel: &'a FakeKernel,
    /// A path that cannot be opened at the moment.
    pub(crate) unreadable: Option<PathBuf>,
    /// No netdev has a parent: hardware on a bus that the kernel tells nothing of.
    pub(crate) busless: bool,
}

impl<'a> Wrapped<'a> {
    pub(crate) fn new(node: &'a Node) -> Self {
        Self {
            kernel: &node.kernel,
            unreadable: None,
            busless: false,
        }
    }

    /// Starts the program on this kernel.
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

    fn ask_only(&self, devices: Option<BTreeSet<DeviceAddress>>) {
        self.kernel.ask_only(devices);
    }

    fn manages_nvlink(&self, address: &DeviceAddress) -> bool {
        self.kernel.manages_nvlink(address)
    }

    fn observe(&self, pod: Option<&FakePod>) -> Result<Observed, ObserveError> {
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

    fn has_smc(&self) -> bool {
        self.kernel.has_smc()
    }

    fn smc(&self, pod: Option<&FakePod>) -> Result<Option<SmcState>, ObserveError> {
        self.kernel.smc(pod)
    }

    fn neighbours(&self) -> Result<Vec<Neighbour>, ObserveError> {
        self.kernel.neighbours()
    }

    fn probe(&self, pod: &FakePod, questions: &[Question]) -> Result<Probed, ProbeError> {
        self.kernel.probe(pod, questions)
    }

    fn overheard(
        &self,
        pod: &FakePod,
        questions: &[Question],
    ) -> Result<Vec<Conflict>, ProbeError> {
        self.kernel.overheard(pod, questions)
    }

    fn execute(&self, op: &Op, pod: Option<&FakePod>) -> Result<(), OpError> {
        self.kernel.execute(op, pod)
    }
}
