// SPDX-License-Identifier: Apache-2.0
//! The seam between plans and a kernel: [`Linux`](crate::Linux) is the real one, the
//! tests' fake keeps a small world of namespaces and devices in memory.

use crate::{
    DeviceAddress, DeviceSettings, GidTable, Link, NetnsId, Observed, Op, Pkey, Vf,
    probe::{Conflict, Neighbour, ProbeError, Probed, Question},
    smc::SmcState,
};
use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Requested hardware. A node has hundreds of PCI functions that no caller needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// PCI functions and auxiliary devices whose RDMA devices' ports are observed; other such hardware is observed
    /// without ports. A port query reaches the device's firmware (`ib_query_port()`,
    /// `drivers/infiniband/core/device.c`), and a faulty one answers after a minute.
    pub ports: BTreeSet<DeviceAddress>,
    /// Further hardware that is observed without querying its firmware.
    pub besides: BTreeSet<DeviceAddress>,
    /// The pod's routes are left out. A pod with `CAP_NET_ADMIN` has as many as its memory holds, and who gives back what
    /// a pod had needs none of them: those of rails go with the netdevs, those of other interfaces are recorded.
    pub no_pod_routes: bool,
}

impl From<BTreeSet<DeviceAddress>> for Asked {
    fn from(ports: BTreeSet<DeviceAddress>) -> Self {
        Self {
            ports,
            ..Self::default()
        }
    }
}

/// A kernel: shows its state, and makes one change at a time.
pub trait Kernel {
    /// A pod's network namespace, held open.
    type Pod: Pod;

    /// Returns the present boot (`/proc/sys/kernel/random/boot_id`).
    fn boot_id(&self) -> Result<String, ObserveError>;

    /// Opens the namespace at `path` (`CNI_NETNS`).
    fn open_pod(&self, path: &Path) -> Result<Self::Pod, OpenPodError>;

    /// Returns the namespaces at `paths`, in their order, for callers that do not work in them.
    ///
    /// # Errors
    /// Each as [`Kernel::open_pod`].
    fn netns_ids(&self, paths: &[&Path]) -> Vec<Result<NetnsId, OpenPodError>> {
        let id = |path: &&Path| Ok(self.open_pod(path)?.id());
        paths.iter().map(id).collect()
    }

    /// Observes the host's namespace and optionally the pod's. Changes nothing.
    fn observe(&self, pod: Option<&Self::Pod>) -> Result<Observed, ObserveError>;

    /// Limits later observations to the `requested` hardware, and to hardware that is observed without a request:
    /// [`Observed::devices`] has that of the netdevs of the two namespaces, and of all RDMA devices. `None`: all
    /// hardware, as initially.
    fn ask_only(&self, asked: Option<Asked>);

    /// Returns true if the PCI function at `address` is no network but manages NVLink's switches. It reads the vital
    /// product data, which takes the device some milliseconds.
    fn manages_nvlink(&self, address: &DeviceAddress) -> bool;

    /// Returns how its physical function on the host has set up the virtual function `function`; `None`: it is no
    /// virtual function. Drivers query their firmware for each function of the physical one.
    ///
    /// # Errors
    /// The physical function's netdev is not on the host, or cannot be queried.
    fn vf(&self, function: &DeviceAddress) -> Result<Option<Vf>, ObserveError>;

    /// Returns settings of `link`, a netdev of the host, outside rtnetlink: [`DeviceSettings`]. Unreadable settings are
    /// missing.
    fn device_settings(&self, link: &Link) -> DeviceSettings;

    /// Returns what a move of the host's `netdevs` drops for good, in words, with each netdev's index: queueing disciplines,
    /// permanent neighbours, multicast and anycast routes. Unreadable objects are missing.
    fn dropped(&self, _netdevs: &[u32]) -> Vec<(u32, String)> {
        vec![]
    }

    /// Observes as [`Kernel::observe`], and reads the set-up of `functions`. A function whose physical function cannot
    /// be queried is missing.
    fn observe_vfs(
        &self,
        pod: Option<&Self::Pod>,
        functions: &BTreeSet<DeviceAddress>,
    ) -> Result<Observed, ObserveError> {
        let mut observed = self.observe(pod)?;
        for function in functions {
            match self.vf(function) {
                Ok(vf) => observed.vfs.extend(vf.map(|vf| (function.clone(), vf))),
                Err(error) => log::warn!("{error}"),
            }
        }
        Ok(observed)
    }

    /// Reads the GID table of the RDMA device's `port` (from 1), as the pod's namespace sees
    /// it, or else the host's. The device not being there is an error (`NotFound`).
    fn gids(
        &self,
        pod: Option<&Self::Pod>,
        device: &str,
        port: u32,
    ) -> Result<GidTable, ObserveError>;

    /// The partitions that the RDMA device's `port` (from 1) of InfiniBand is in, as the host sees it. The device
    /// not being there is an error (`NotFound`).
    fn partitions(&self, device: &str, port: u32) -> Result<Vec<Pkey>, ObserveError>;

    /// Returns true if the kernel has SMC. It is cheap and loads no module: without SMC no process can have connections
    /// over it.
    fn has_smc(&self) -> bool;

    /// Reads the SMC state of the host and optionally the pod; `None`: the kernel has no SMC. Call it only if SMC is
    /// required or was set up: the kernel loads the module for it.
    fn smc(&self, pod: Option<&Self::Pod>) -> Result<Option<SmcState>, ObserveError>;

    /// Returns true if a program listens on one socket to all events of the host's netdevs, addresses and routes, as
    /// network managers and routing daemons do.
    fn is_watched(&self) -> bool;

    /// The neighbours that the host knows, by all of its netdevs.
    fn neighbours(&self) -> Result<Vec<Neighbour>, ObserveError>;

    /// Asks on the wire for all addresses at once, and comes back as soon as one of them is not
    /// free, or after [`PROBE_TIME`](crate::probe::PROBE_TIME). Changes nothing.
    fn probe(&self, pod: &Self::Pod, questions: &[Question]) -> Result<Probed, ProbeError>;

    /// Returns hosts that were heard to have one of the addresses since the probe, without waiting.
    fn overheard(
        &self,
        pod: &Self::Pod,
        questions: &[Question],
    ) -> Result<Vec<Conflict>, ProbeError>;

    /// Makes the single change `op`. `pod` is required if `op` names it.
    fn execute(&self, op: &Op, pod: Option<&Self::Pod>) -> Result<(), OpError>;

    /// The time by which [`Kernel::pause`] is counted.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Lets `time` pass.
    fn pause(&self, time: Duration) {
        thread::sleep(time);
    }
}

/// A pod's network namespace.
pub trait Pod {
    /// Returns the path at which it was opened.
    fn path(&self) -> &Path;
    /// Returns the identity of the namespace, whatever is at the path later.
    fn id(&self) -> NetnsId;
}

/// Why a path could not be opened as a pod's namespace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenPodError {
    /// Nothing is there: the namespace is gone.
    #[error("there is no {0:?}")]
    Missing(PathBuf),
    /// A file that is no network namespace.
    #[error("{0:?} is no network namespace")]
    NotNamespace(PathBuf),
    /// The namespace that this program runs in: nothing can be moved into it.
    #[error("{0:?} is the host's own network namespace")]
    HostNamespace(PathBuf),
    /// The system refused.
    #[error("cannot open {path:?}: {source}")]
    Io {
        /// Requested path.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// The state could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {what}: {source}")]
pub struct ObserveError {
    /// Object of the observation: `the links of the pod`.
    pub what: String,
    /// The kernel's answer.
    pub source: io::Error,
}

/// A change that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("{op}: {source}{}", message.as_ref().map(|m| format!(" ({m})")).unwrap_or_default())]
pub struct OpError {
    /// The requested change.
    pub op: Box<Op>,
    /// The errno.
    pub source: io::Error,
    /// The kernel's own sentence (`NLMSGERR_ATTR_MSG`), where it gave one.
    pub message: Option<String>,
}

impl OpError {
    /// The errno, where the refusal was the kernel's.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}
