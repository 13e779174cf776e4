// SPDX-License-Identifier: Apache-2.0
//! The real kernel for a process that dies after one of its changes.

use rdma_netns::{
    Conflict, DeviceAddress, DeviceSettings, GidTable, Kernel, Link, Linux, Neighbour,
    ObservationScope, ObserveError, Observed, Op, OpError, OpenPodError, Pkey, ProbeError, Probed,
    Question, Vf, smc::SmcState,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

/// The real kernel. The process panics after `left` changes.
pub(crate) struct Mortal<'a> {
    kernel: &'a Linux,
    left: AtomicUsize,
}

struct Died;

impl<'a> Mortal<'a> {
    /// Runs `work` on `kernel`. Returns true if the process died after `changes` changes.
    pub(crate) fn dies(kernel: &'a Linux, changes: usize, work: impl FnOnce(&Self)) -> bool {
        let left = AtomicUsize::new(changes);
        let mortal = Self { kernel, left };
        match catch_unwind(AssertUnwindSafe(|| work(&mortal))) {
            Ok(()) => false,
            Err(payload) if payload.is::<Died>() => true,
            Err(payload) => resume_unwind(payload),
        }
    }
}

impl Kernel for Mortal<'_> {
    type Pod = <Linux as Kernel>::Pod;

    fn boot_id(&self) -> Result<String, ObserveError> {
        self.kernel.boot_id()
    }

    fn open_pod(&self, path: &Path) -> Result<Self::Pod, OpenPodError> {
        self.kernel.open_pod(path)
    }

    fn observe(&self, pod: Option<&Self::Pod>) -> Result<Observed, ObserveError> {
        self.kernel.observe(pod)
    }

    fn limit_observation(&self, scope: Option<ObservationScope>) -> Option<ObservationScope> {
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

    fn gids(
        &self,
        pod: Option<&Self::Pod>,
        device: &str,
        port: u32,
    ) -> Result<GidTable, ObserveError> {
        self.kernel.gids(pod, device, port)
    }

    fn partitions(&self, device: &str, port: u32) -> Result<Vec<Pkey>, ObserveError> {
        self.kernel.partitions(device, port)
    }

    fn has_smc(&self) -> bool {
        self.kernel.has_smc()
    }

    fn smc(&self, pod: Option<&Self::Pod>) -> Result<Option<SmcState>, ObserveError> {
        self.kernel.smc(pod)
    }

    fn is_watched(&self) -> bool {
        self.kernel.is_watched()
    }

    fn neighbours(&self) -> Result<Vec<Neighbour>, ObserveError> {
        self.kernel.neighbours()
    }

    fn probe(&self, pod: &Self::Pod, questions: &[Question]) -> Result<Probed, ProbeError> {
        self.kernel.probe(pod, questions)
    }

    fn conflicts_since_probe(
        &self,
        pod: &Self::Pod,
        questions: &[Question],
    ) -> Result<Vec<Conflict>, ProbeError> {
        self.kernel.conflicts_since_probe(pod, questions)
    }

    fn execute(&self, op: &Op, pod: Option<&Self::Pod>) -> Result<(), OpError> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            panic_any(Died);
        }
        self.kernel.execute(op, pod)
    }
}
