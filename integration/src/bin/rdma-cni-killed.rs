//! The real plugin on the real kernel, killed by SIGKILL at a chosen change.
//!
//! `RDMA_CNI_KILL_AFTER=n`: the process ends after its n-th change; 0 ends it when it is
//! about to make the first one, with only the record written. All else is `rdma-cni`.

use cni_protocol::Input;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rdma_netns::{
    DeviceAddress, GidTable, Kernel, Linux, ObserveError, Observed, Op, OpError, OpenPodError,
    smc::SmcState,
};
use std::{cell::Cell, collections::BTreeSet, path::Path, process::ExitCode};

struct Killed {
    linux: Linux,
    left: Cell<Option<u32>>,
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

    fn ask_only(&self, devices: Option<BTreeSet<DeviceAddress>>) {
        self.linux.ask_only(devices);
    }

    fn gids(
        &self,
        pod: Option<&Self::Pod>,
        device: &str,
        port: u32,
    ) -> Result<GidTable, ObserveError> {
        self.linux.gids(pod, device, port)
    }

    fn has_smc(&self) -> bool {
        self.linux.has_smc()
    }

    fn smc(&self, pod: Option<&Self::Pod>) -> Result<Option<SmcState>, ObserveError> {
        self.linux.smc(pod)
    }

    fn execute(&self, op: &Op, pod: Option<&Self::Pod>) -> Result<(), OpError> {
        if self.left.get() == Some(0) {
            die();
        }
        let done = self.linux.execute(op, pod);
        if let Some(left) = self.left.get() {
            self.left.set(Some(left - 1));
            if left == 1 {
                die();
            }
        }
        done
    }
}

fn die() {
    // a process cannot outlive this
    let _ = kill(Pid::this(), Signal::SIGKILL);
}

fn main() -> ExitCode {
    let left = std::env::var("RDMA_CNI_KILL_AFTER")
        .ok()
        .and_then(|text| text.parse().ok());
    let kernel = Killed {
        linux: Linux::new(),
        left: Cell::new(left),
    };
    rdma_cni::run(
        Input::of_process(),
        &mut std::io::stdin(),
        &mut std::io::stdout(),
        &kernel,
    )
}
