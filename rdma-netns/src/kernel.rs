// SPDX-License-Identifier: Apache-2.0
//! Interface between plans and a kernel. [`Linux`](crate::Linux) implements it with the real kernel. The tests' fake
//! kernel models namespaces and devices in memory.

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

/// The hardware that an observation covers. A node has hundreds of PCI functions that no caller needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservationScope {
    /// PCI functions and auxiliary devices for whose RDMA devices ports are observed. Ports of other RDMA devices are
    /// not observed. A port query reaches the firmware (`ib_query_port()`, `drivers/infiniband/core/device.c`), and
    /// faulty firmware takes a minute to answer.
    pub ports: BTreeSet<DeviceAddress>,
    /// Further hardware, which is observed without querying its firmware.
    pub besides: BTreeSet<DeviceAddress>,
    /// True to leave out the pod's routes. A pod with `CAP_NET_ADMIN` can have as many routes as its memory holds. A
    /// restore needs none of them: a rail's routes disappear with its netdev, and the record has the routes of other
    /// interfaces.
    pub no_pod_routes: bool,
}

impl From<BTreeSet<DeviceAddress>> for ObservationScope {
    fn from(ports: BTreeSet<DeviceAddress>) -> Self {
        Self {
            ports,
            ..Self::default()
        }
    }
}

/// A kernel: reports its state, and makes one change at a time.
pub trait Kernel {
    /// A pod's network namespace, held open.
    type Pod: Pod;

    /// Returns the present boot (`/proc/sys/kernel/random/boot_id`).
    fn boot_id(&self) -> Result<String, ObserveError>;

    /// Opens the namespace at `path` (`CNI_NETNS`).
    fn open_pod(&self, path: &Path) -> Result<Self::Pod, OpenPodError>;

    /// Returns the identities of the namespaces at `paths`, in order, without opening the namespaces for later work.
    ///
    /// # Errors
    /// Each as [`Kernel::open_pod`].
    fn netns_ids(&self, paths: &[&Path]) -> Vec<Result<NetnsId, OpenPodError>> {
        let id = |path: &&Path| Ok(self.open_pod(path)?.id());
        paths.iter().map(id).collect()
    }

    /// Observes the host's namespace and optionally the pod's. Changes nothing.
    fn observe(&self, pod: Option<&Self::Pod>) -> Result<Observed, ObserveError>;

    /// Limits later observations to the hardware of `scope`, and to hardware that is observed without a request: the
    /// hardware of the netdevs of the two namespaces, and of all RDMA devices ([`Observed::devices`]). `None`: all
    /// hardware, as initially.
    fn limit_observation(&self, scope: Option<ObservationScope>);

    /// Returns true if the PCI function at `address` is no network but manages NVLink's switches. The call reads the
    /// vital product data, which takes the device some milliseconds.
    fn manages_nvlink(&self, address: &DeviceAddress) -> bool;

    /// Returns the set-up of the virtual function `function` by its physical function on the host. `None`: `function`
    /// is no virtual function. Drivers query their firmware for each function of the physical one.
    ///
    /// # Errors
    /// The physical function's netdev is not on the host, or cannot be queried.
    fn vf(&self, function: &DeviceAddress) -> Result<Option<Vf>, ObserveError>;

    /// Returns settings of `link`, a netdev of the host, outside rtnetlink: [`DeviceSettings`]. Unreadable settings are
    /// missing.
    fn device_settings(&self, link: &Link) -> DeviceSettings;

    /// Describes the objects that a move of the host's `netdevs` removes permanently, each with its netdev's index:
    /// queueing disciplines, permanent neighbours, multicast and anycast routes. Leaves out objects that cannot be
    /// read.
    fn dropped(&self, _netdevs: &[u32]) -> Vec<(u32, String)> {
        vec![]
    }

    /// Observes like [`Kernel::observe`], and also reads the set-up of `functions`. Leaves out functions whose physical
    /// function cannot be queried.
    fn observe_vfs(
        &self,
        pod: Option<&Self::Pod>,
        functions: &BTreeSet<DeviceAddress>,
    ) -> Result<Observed, ObserveError> {
        let mut observed = self.observe(pod)?;
        for function in functions {
            match self.vf(function) {
                Ok(vf) => observed.vfs.extend(vf.map(|vf| (function.clone(), vf))),
                Err(error) => {
                    log::warn!("virtual function {function}: {error}; its settings are unknown")
                }
            }
        }
        Ok(observed)
    }

    /// Reads the GID table of the RDMA device's `port` (from 1). The pod's namespace is used, or without a pod the
    /// host's. Error `NotFound`: there is no such device.
    fn gids(
        &self,
        pod: Option<&Self::Pod>,
        device: &str,
        port: u32,
    ) -> Result<GidTable, ObserveError>;

    /// Returns the partitions of the RDMA device's InfiniBand `port` (from 1), as the host sees them. Error `NotFound`:
    /// there is no such device.
    fn partitions(&self, device: &str, port: u32) -> Result<Vec<Pkey>, ObserveError>;

    /// Returns true if the kernel has SMC; without SMC no process can have SMC connections. The check is cheap and
    /// loads no module.
    fn has_smc(&self) -> bool;

    /// Reads the SMC state of the host and optionally the pod; `None`: the kernel has no SMC. Call this only if SMC is
    /// required or was set up: the kernel loads the module for the query.
    fn smc(&self, pod: Option<&Self::Pod>) -> Result<Option<SmcState>, ObserveError>;

    /// Returns true if a program receives all events of the host's netdevs, addresses and routes on one socket, like
    /// network managers and routing daemons.
    fn is_watched(&self) -> bool;

    /// Returns the neighbours in the host's neighbour tables, by all netdevs.
    fn neighbours(&self) -> Result<Vec<Neighbour>, ObserveError>;

    /// Probes all addresses on the wire at once. Returns when a probe finds one address in use, or after
    /// [`PROBE_TIME`](crate::probe::PROBE_TIME). Changes nothing.
    fn probe(&self, pod: &Self::Pod, questions: &[Question]) -> Result<Probed, ProbeError>;

    /// Returns hosts that claimed one of the addresses since the probe; does not wait.
    fn overheard(
        &self,
        pod: &Self::Pod,
        questions: &[Question],
    ) -> Result<Vec<Conflict>, ProbeError>;

    /// Makes the single change `op`. `pod` is required if `op` names it.
    fn execute(&self, op: &Op, pod: Option<&Self::Pod>) -> Result<(), OpError>;

    /// Returns the time on the clock that [`Kernel::pause`] advances.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Waits for `time`.
    fn pause(&self, time: Duration) {
        thread::sleep(time);
    }
}

/// A pod's network namespace.
pub trait Pod {
    /// Returns the path at which the namespace was opened.
    fn path(&self) -> &Path;
    /// Returns the identity of the namespace, whatever is at the path later.
    fn id(&self) -> NetnsId;
}

/// Why a path could not be opened as a pod's namespace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenPodError {
    /// Nothing is at the path: the namespace is gone.
    #[error("there is no {0:?}")]
    Missing(PathBuf),
    /// The path is a file that is no network namespace.
    #[error("{0:?} is no network namespace")]
    NotNamespace(PathBuf),
    /// The path leads to the namespace of this program, into which nothing can be moved.
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
    /// The kernel's own sentence (`NLMSGERR_ATTR_MSG`), if it gave one.
    pub message: Option<String>,
}

impl OpError {
    /// Returns the errno, if the kernel refused.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}
