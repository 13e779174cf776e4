// SPDX-License-Identifier: Apache-2.0
//! The real plugin on the real kernel. SIGKILL ends it at a chosen point.
//!
//! `RDMA_CNI_KILL_AFTER=n`: the process ends at point n, counted from 0. There is a point before and after each
//! operation of the kind `RDMA_CNI_KILL_AROUND`: `all` (the default) or `moves`. Between two such operations in
//! a row there is only one point. So with `all`, point 0 is before the first operation, and point n after the n-th. In
//! other respects the program is `rdma-cni`.

use cni_protocol::Input;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rdma_netns::{
    Conflict, DeviceAddress, DeviceSettings, GidTable, Kernel, Link, Linux, Neighbour,
    ObservationScope, ObserveError, Observed, Op, OpError, OpenPodError, Pkey, ProbeError, Probed,
    Question, Vf, smc::SmcState,
};
use std::{cell::Cell, path::Path, process::ExitCode};

struct Killed {
    linux: Linux,
    around: String,
    left: Cell<Option<u32>>,
    /// True if the process has executed no operation since the last point.
    is_counted: Cell<bool>,
}

impl Killed {
    fn is_of_the_kind(&self, op: &Op) -> bool {
        match op {
            Op::MoveRdma { .. } | Op::MoveLink { .. } | Op::SetVf { .. } => true,
            _ => self.around == "all",
        }
    }

    fn point(&self) {
        if self.is_counted.replace(true) {
            return;
        }
        if let Some(left) = self.left.get() {
            if left == 0 {
                die();
            }
            self.left.set(Some(left - 1));
        }
    }
}

impl Kernel for Killed {
    type Pod = <Linux as Kernel>::Pod;

    fn boot_id(&self) -> Result<String, ObserveError> {
        self.linux.boot_id()
    }

    fn open_pod(&self, path: &Path) -> Result<Self::Pod, OpenPodError> {
        self.linux.open_pod(path)
    }

    fn observe(&self, pod: Option<&Self::Pod>) -> Result<Observed, ObserveError> {
        self.linux.observe(pod)
    }

    fn limit_observation(&self, scope: Option<ObservationScope>) -> Option<ObservationScope> {
        self.linux.limit_observation(scope)
    }

    fn manages_nvlink(&self, address: &DeviceAddress) -> bool {
        self.linux.manages_nvlink(address)
    }

    fn vf(&self, function: &DeviceAddress) -> Result<Option<Vf>, ObserveError> {
        self.linux.vf(function)
    }

    fn device_settings(&self, link: &Link) -> DeviceSettings {
        self.linux.device_settings(link)
    }

    fn gids(
        &self,
        pod: Option<&Self::Pod>,
        device: &str,
        port: u32,
    ) -> Result<GidTable, ObserveError> {
        self.linux.gids(pod, device, port)
    }

    fn partitions(&self, device: &str, port: u32) -> Result<Vec<Pkey>, ObserveError> {
        self.linux.partitions(device, port)
    }

    fn has_smc(&self) -> bool {
        self.linux.has_smc()
    }

    fn smc(&self, pod: Option<&Self::Pod>) -> Result<Option<SmcState>, ObserveError> {
        self.linux.smc(pod)
    }

    fn is_watched(&self) -> bool {
        self.linux.is_watched()
    }

    fn neighbours(&self) -> Result<Vec<Neighbour>, ObserveError> {
        self.linux.neighbours()
    }

    fn probe(&self, pod: &Self::Pod, questions: &[Question]) -> Result<Probed, ProbeError> {
        self.linux.probe(pod, questions)
    }

    fn overheard(
        &self,
        pod: &Self::Pod,
        questions: &[Question],
    ) -> Result<Vec<Conflict>, ProbeError> {
        self.linux.overheard(pod, questions)
    }

    fn execute(&self, op: &Op, pod: Option<&Self::Pod>) -> Result<(), OpError> {
        let is_of_the_kind = self.is_of_the_kind(op);
        if is_of_the_kind {
            self.point();
        }
        let done = self.linux.execute(op, pod);
        self.is_counted.set(false);
        if is_of_the_kind {
            self.point();
        }
        done
    }
}

fn die() {
    // SIGKILL ends the process before it can continue
    let _ = kill(Pid::this(), Signal::SIGKILL);
}

fn main() -> ExitCode {
    let left = std::env::var("RDMA_CNI_KILL_AFTER")
        .ok()
        .and_then(|text| text.parse().ok());
    let kernel = Killed {
        linux: Linux::new(),
        around: std::env::var("RDMA_CNI_KILL_AROUND").unwrap_or_else(|_| "all".to_owned()),
        left: Cell::new(left),
        is_counted: Cell::new(false),
    };
    rdma_cni::run(
        Input::of_process(),
        &mut std::io::stdin(),
        &mut std::io::stdout(),
        &kernel,
    )
}
