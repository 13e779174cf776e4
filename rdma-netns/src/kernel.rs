// SPDX-License-Identifier: Apache-2.0
//! Interface between plans and a kernel. [`Linux`](crate::Linux) is the real kernel. The tests' fake kernel models
//! namespaces and devices in memory.

use crate::{
    DeviceAddress, DeviceSettings, GidTable, Link, NetnsId, Observed, Op, OpenPodError, Pkey, Vf,
    linux::seconds_since_boot,
    probe::{Conflict, Neighbour, ProbeError, Probed, Question},
    smc::SmcState,
};
use std::{
    collections::BTreeSet,
    io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Limits of observations. A node has hundreds of PCI functions that no caller needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservationScope {
    /// PCI functions and auxiliary devices whose RDMA ports an observation reads. An observation reads no other RDMA
    /// ports, because a port query reaches the firmware (`ib_query_port()`, `drivers/infiniband/core/device.c`), and
    /// faulty firmware responds only after a minute.
    pub ports: BTreeSet<DeviceAddress>,
    /// Further PCI functions and auxiliary devices. An observation reads them without a query to their firmware.
    pub besides: BTreeSet<DeviceAddress>,
    /// True if an observation omits the pod's routes. A pod with `CAP_NET_ADMIN` can have as many routes as its memory
    /// allows. A restore does not need the pod's routes: the kernel removes the routes of a rail's netdev when the
    /// netdev leaves the pod, and the routes of other interfaces are in the record.
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
    /// A pod's network namespace, which this value keeps open.
    type Pod: Pod;

    /// Returns the id of the present boot (`/proc/sys/kernel/random/boot_id`).
    fn boot_id(&self) -> Result<String, ObserveError>;

    /// Opens the namespace at `path` (`CNI_NETNS`).
    fn open_pod(&self, path: &Path) -> Result<Self::Pod, OpenPodError>;

    /// Returns the identities of the namespaces at `paths`, in order. Does not keep the namespaces open.
    ///
    /// # Errors
    /// Each result has the errors of [`Kernel::open_pod`].
    fn netns_ids(&self, paths: &[&Path]) -> Vec<Result<NetnsId, OpenPodError>> {
        let id = |path: &&Path| Ok(self.open_pod(path)?.id());
        paths.iter().map(id).collect()
    }

    /// Observes the host's namespace, and the pod's namespace if there is a pod. Changes nothing.
    fn observe(&self, pod: Option<&Self::Pod>) -> Result<Observed, ObserveError>;

    /// Limits later observations to the hardware of `scope`, the hardware of the netdevs in both namespaces, and the
    /// hardware of all RDMA devices ([`Observed::devices`]). With `None`, observations read all hardware, as they do
    /// before the first call. Returns the previous limit.
    fn limit_observation(&self, scope: Option<ObservationScope>) -> Option<ObservationScope>;

    /// Returns true if the PCI function at `address` manages NVLink's switches, and so is no network device. Reads the
    /// function's vital product data, which takes some milliseconds.
    fn manages_nvlink(&self, address: &DeviceAddress) -> bool;

    /// Returns the settings of the virtual function `function` that its physical function on the host reports. Returns
    /// `None` if `function` is no virtual function. The call is slow: the driver queries its firmware for each virtual
    /// function of the physical function.
    ///
    /// # Errors
    /// The physical function's netdev is not on the host, or cannot be queried.
    fn vf(&self, function: &DeviceAddress) -> Result<Option<Vf>, ObserveError>;

    /// Returns the [`DeviceSettings`] of `link`, a netdev of the host. Omits settings that cannot be read.
    fn device_settings(&self, link: &Link) -> DeviceSettings;

    /// Describes the objects that a move of the host's `netdevs` removes permanently, each with its netdev's index:
    /// queueing disciplines, permanent neighbours, and multicast and anycast routes. Omits objects that cannot be read.
    fn dropped(&self, _netdevs: &[u32]) -> Vec<(u32, String)> {
        vec![]
    }

    /// Observes like [`Kernel::observe`], and also reads the settings of the virtual `functions`. Omits functions whose
    /// physical function cannot be queried.
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

    /// Reads the GID table of the RDMA device's `port` (from 1) in the pod's namespace. Without a pod, reads the table
    /// in the host's namespace. The error `NotFound` means that the device does not exist.
    fn gids(
        &self,
        pod: Option<&Self::Pod>,
        device: &str,
        port: u32,
    ) -> Result<GidTable, ObserveError>;

    /// Returns the partitions of the RDMA device's InfiniBand `port` (from 1), as the host sees them. The error
    /// `NotFound` means that the device does not exist.
    fn partitions(&self, device: &str, port: u32) -> Result<Vec<Pkey>, ObserveError>;

    /// Returns true if SMC is built into the kernel, or its module is loaded. Otherwise no process can have SMC
    /// connections. The check is cheap and loads no module.
    fn has_smc(&self) -> bool;

    /// Reads the SMC state of the host, and of the pod if there is one. Returns `None` if the kernel has no SMC. Call
    /// this function only if SMC is required or was set up, because the query makes the kernel load its SMC module.
    fn smc(&self, pod: Option<&Self::Pod>) -> Result<Option<SmcState>, ObserveError>;

    /// Returns true if a program receives all events of the host's netdevs, addresses and routes on one socket. Network
    /// managers and routing daemons do so.
    fn is_watched(&self) -> bool;

    /// Returns the neighbours with a known hardware address, on all netdevs of the host.
    fn neighbours(&self) -> Result<Vec<Neighbour>, ObserveError>;

    /// Probes all addresses on the wire at once. Returns when a probe finds that an address is in use, and at the
    /// latest after [`PROBE_TIME`](crate::probe::PROBE_TIME). Changes nothing.
    fn probe(&self, pod: &Self::Pod, questions: &[Question]) -> Result<Probed, ProbeError>;

    /// Returns the hosts that claimed one of the addresses since the probe. Does not wait.
    fn conflicts_since_probe(
        &self,
        pod: &Self::Pod,
        questions: &[Question],
    ) -> Result<Vec<Conflict>, ProbeError>;

    /// Makes the single change `op`. `pod` is required if `op` changes the pod's namespace.
    fn execute(&self, op: &Op, pod: Option<&Self::Pod>) -> Result<(), OpError>;

    /// Makes the change `op` like [`Kernel::execute`]. If `op` names a netdev of the pod, changes the netdev with this
    /// name in `observed`, even if a process in the pod has renamed the netdev since ([`Op::by_index`] has exceptions).
    /// An error contains `op`.
    fn execute_as_observed(
        &self,
        op: &Op,
        pod: Option<&Self::Pod>,
        observed: &Observed,
    ) -> Result<(), OpError> {
        let made = self.execute(&op.by_index(observed), pod);
        made.map_err(|error| OpError {
            op: Box::new(op.clone()),
            ..error
        })
    }

    /// Returns the present time of the clock that [`Kernel::pause`] advances.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Returns the seconds since the boot, including suspend (`CLOCK_BOOTTIME`). No program can set this clock.
    fn uptime(&self) -> u64 {
        seconds_since_boot().unwrap_or_default()
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
    /// Returns the identity of the opened namespace, even if the path leads to another namespace later.
    fn id(&self) -> NetnsId;
}

/// The kernel's state could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {what}: {source}")]
pub struct ObserveError {
    /// The object that could not be read: `the links of the pod`.
    pub what: String,
    /// The kernel's error.
    pub source: io::Error,
}

/// A change that failed.
#[derive(Debug, thiserror::Error)]
#[error("{op}: {source}{}", message.as_ref().map(|m| format!(" ({m})")).unwrap_or_default())]
pub struct OpError {
    /// The requested change.
    pub op: Box<Op>,
    /// Reason: in most cases the kernel's errno.
    pub source: io::Error,
    /// The kernel's own error text (`NLMSGERR_ATTR_MSG`), if the kernel sent one.
    pub message: Option<String>,
}

impl OpError {
    /// Returns the kernel's errno, if the kernel refused the change.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}
