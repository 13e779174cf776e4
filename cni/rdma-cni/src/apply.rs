// SPDX-License-Identifier: Apache-2.0
//! Executes the plans that move an attachment's rails into the pod or back to the host. Only this module moves devices.

mod busy;
mod outcome;
mod rebound;
mod restore;
mod round;

pub use outcome::{GivenUp, Incomplete, Restored};
pub use restore::restore;

use crate::open_connections;
use attachments::Attachment;
use nix::libc;
use plan::{self, Obstacle};
use rdma_netns::{
    Address, Conflict, Desired, Kernel, LinkChange, LinkType, NetnsSide, ObserveError, Observed,
    Op, OpError, Plan, RdmaDevice, Refusal, Unstable, reconcile,
};
use std::{net::IpAddr, time::Duration};

/// Number of plans that an attach can need. A restore begins to pause and to give up after this number. A rail with an
/// IPoIB netdev needs two plans, or three if its driver is bound again. Any other rail needs one plan. The final empty
/// plan does not count. [`attach`] allows one more plan for each rail, because udev may rename an IPoIB netdev
/// meanwhile.
const ROUNDS: usize = 4;

/// Time limit for a character device to appear in `/dev`.
const CHAR_DEVICE_TIMEOUT: Duration = Duration::from_secs(2);

const POLL: Duration = Duration::from_millis(10);

/// Time since the first failed try after which a restore gives up a netdev that no namespace has. A driver that
/// recovers its function makes the netdev again: mlx5 waits up to a minute for the function, and then loads the
/// firmware (`mlx5_health_wait_pci_up()`, `drivers/net/ethernet/mellanox/mlx5/core/health.c`).
const DRIVER_RECOVERY: Duration = Duration::from_secs(180);

/// Position of a restore in the sequence of tries by several verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tries {
    /// No earlier verb tried.
    First,
    /// An earlier verb tried.
    Again,
    /// An earlier verb tried a long time ago. The restore gives up a netdev that no namespace has.
    Last,
}

impl Tries {
    /// Returns the position of a verb that begins `since_failure` after the first failed try.
    pub fn new(since_failure: Option<Duration>) -> Self {
        match since_failure {
            None => Self::First,
            Some(time) if time >= DRIVER_RECOVERY => Self::Last,
            Some(_) => Self::Again,
        }
    }
}

/// Reason why the pod or the host did not reach the desired state.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The kernel refused a change.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The kernel's state could not be read.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// No plan leads to the desired state, because of this obstacle.
    #[error(transparent)]
    Obstacle(#[from] Obstacle),
    /// The kernel made all changes, but the state still differs from the desired state.
    #[error(transparent)]
    Unstable(#[from] Unstable),
    /// Another machine has the address.
    #[error("{0} is in use by another machine: duplicate address detection found it")]
    Duplicate(IpAddr),
    /// Another machine answered a probe for the address, or probes the same address.
    #[error(
        "{0}; set \"probe\" to \"off\" if a machine answers for every address, as proxy ARP does"
    )]
    InUse(Conflict),
    /// Another machine began to use the address after the probes.
    #[error("{0}: another machine took the address while ADD set it")]
    TakenMeanwhile(Conflict),
    /// The RDMA device has no RoCE v2 GID for the address, so RDMA cannot use the address.
    #[error(
        "{rdma} has no RoCE v2 GID for {address} after {} ms: {used} of {size} GIDs are used{}",
        waited.as_millis(),
        no_gid(used >= size, *is_shared)
    )]
    NoGid {
        /// The RDMA device.
        rdma: String,
        /// The address.
        address: IpAddr,
        /// Time since ADD began to wait for the GID.
        waited: Duration,
        /// Number of used entries in the GID table.
        used: u32,
        /// Size of the GID table in entries.
        size: u32,
        /// True if another netdev has or had a GID of the address during ADD.
        is_shared: bool,
    },
    /// Duplicate address detection of the address did not finish.
    #[error(
        "duplicate address detection of {0} has not ended: the address is in use, or the link has no carrier"
    )]
    Tentative(IpAddr),
    /// A moved RDMA device does not have the character devices in `/dev` that the kernel reports.
    #[error("/dev/infiniband/{node} is not the character device of RDMA device {rdma}: {found}")]
    CharDevice {
        /// The RDMA device.
        rdma: String,
        /// Name of the character device.
        node: String,
        /// The file at the character device's path.
        found: String,
    },
}

/// Returns the remedy in the message of [`ApplyError::NoGid`].
fn no_gid(is_full: bool, is_shared: bool) -> &'static str {
    match (is_full, is_shared) {
        (true, _) => "; the GID table is full: let fewer pods share this device",
        (_, true) => "; another netdev has a GID of this address: give each pod another address",
        _ => "; run dmesg | grep -i gid on the node to see why",
    }
}

/// Attaches every rail to the pod and sets its assigned addresses and routes. `observed` is the present state. Returns
/// the state after the last change.
pub fn attach<K: Kernel>(
    kernel: &K,
    pod: &K::Pod,
    attachment: &Attachment,
    observed: Observed,
) -> Result<Observed, ApplyError> {
    let mut attached = Attached {
        kernel,
        pod,
        attachment,
        observed: Some(observed),
        rebinds: false,
        retry: busy::Retry::default(),
    };
    let rounds = ROUNDS + attachment.rails.len();
    reconcile(kernel, Some(pod), rounds, &mut attached).map(|(observed, _)| observed)
}

/// Desired state in which all rails are in the pod.
struct Attached<'a, K: Kernel> {
    kernel: &'a K,
    pod: &'a K::Pod,
    attachment: &'a Attachment,
    /// Present state. `None`: the state was not observed after the last change.
    observed: Option<Observed>,
    /// True if the last round bound drivers again.
    rebinds: bool,
    /// Time limit for repeating the operation that the kernel refused last.
    retry: busy::Retry,
}

impl<K: Kernel> Attached<'_, K> {
    fn observe(&self) -> Result<Observed, ObserveError> {
        let functions = self.attachment.vfs();
        self.kernel.observe_vfs(Some(self.pod), &functions)
    }
}

impl<K: Kernel> Desired for Attached<'_, K> {
    type Reached = Observed;
    type Error = ApplyError;

    fn plan(&mut self) -> Result<Plan<Observed>, ApplyError> {
        if self.rebinds {
            rebound::wait(self.kernel, self.attachment);
        }
        let observed = match self.observed.take() {
            Some(observed) => observed,
            None => self.observe()?,
        };
        let ops = plan::attach(self.attachment, &observed)?;
        if ops.is_empty() {
            return Ok(Plan::Reached(observed));
        }
        open_connections::check(self.kernel, Some(self.pod), &ops)?;
        self.rebinds = ops.iter().any(rebound::is_rebound);
        Ok(Plan::Missing(ops))
    }

    /// Decides how to continue after the kernel refused an operation:
    ///
    /// - A driver is busy with a virtual function: repeats the operation for a limited time.
    /// - A driver could not be bound: ends with the kernel's error.
    /// - Udev renamed the netdev: plans again.
    /// - Any other refusal: ends with the obstacle that a new plan reports, or, if there is no obstacle, with the
    ///   kernel's error.
    fn refused(&mut self, error: OpError) -> Refusal<ApplyError> {
        if busy::is_busy(&error) && self.retry.wait(self.kernel, &error) {
            return Refusal::TryAgain;
        }
        if rebound::is_rebound(&error.op) {
            // after the failed bind the function has no devices
            return Refusal::End(error.into());
        }
        let observed = self.observe();
        let planned = observed.map(|it| plan::attach(self.attachment, &it));
        match planned {
            Ok(Err(obstacle)) => Refusal::End(obstacle.into()),
            // udev has renamed a new netdev since the observation
            Ok(Ok(ops)) if error.errno() == Some(libc::ENODEV) && !ops.contains(&error.op) => {
                Refusal::PlanAgain(error)
            }
            _ => Refusal::End(error.into()),
        }
    }
}

/// Waits for a limited time until `/dev/infiniband` has the character devices of the moved RDMA devices. Logs each RDMA
/// device whose character devices got new names in the move.
pub fn check_char_devices<K: Kernel>(
    kernel: &K,
    pod: &K::Pod,
    attachment: &Attachment,
    mut observed: Observed,
) -> Result<Observed, ApplyError> {
    let deadline = kernel.now() + CHAR_DEVICE_TIMEOUT;
    loop {
        match misplaced(attachment, &observed) {
            None => break,
            Some(error) if kernel.now() >= deadline => return Err(error),
            Some(_) => kernel.pause(POLL),
        }
        observed = kernel.observe_vfs(Some(pod), &attachment.vfs())?;
    }
    for (before, after) in moved(attachment, &observed) {
        let names = |device: &RdmaDevice| -> Vec<String> {
            device
                .char_devices
                .iter()
                .map(|node| node.name.clone())
                .collect()
        };
        if names(before) == names(after) {
            continue;
        }
        let rdma = &after.name;
        let change = format!(
            "from {} to {}",
            names(before).join(" "),
            names(after).join(" ")
        );
        match promises_are_known(attachment, before) {
            true => {
                log::info!("RDMA device {rdma}: the move changed its character devices {change}")
            }
            false => log::warn!(
                "RDMA device {rdma}: the move changed its character devices {change}; if another device plugin than \
                 rdma-device-plugin gave a container the old path, the container does not start, or cannot open it: \
                 delete the pod, so that it gets another allocation"
            ),
        }
    }
    Ok(observed)
}

/// Returns true if the record lists the character devices that kubelet promised to containers. In this case a later
/// step of ADD updates the CDI entry, or fails.
fn promises_are_known(attachment: &Attachment, before: &RdmaDevice) -> bool {
    let allocated = attachment.allocated_with(before);
    allocated.is_some_and(|it| it.cdi || !it.by_path.is_empty())
}

/// Returns the error for the first moved RDMA device whose character devices in `/dev` do not match.
pub fn misplaced(attachment: &Attachment, observed: &Observed) -> Option<ApplyError> {
    moved(attachment, observed).find_map(|(before, after)| {
        let error = |node: &str, found: String| ApplyError::CharDevice {
            rdma: after.name.clone(),
            node: node.to_owned(),
            found,
        };
        if after.char_devices.len() < before.char_devices.len() {
            let node = &before.char_devices[0].name;
            return Some(error(node, "the kernel has not created the file".into()));
        }
        let node = after.char_devices.iter().find(|node| !node.is_in_place())?;
        let found = match node.node {
            Some((major, minor)) => {
                format!(
                    "its device number is {major}:{minor}, not {}:{}",
                    node.major, node.minor
                )
            }
            None => "the file does not exist".into(),
        };
        Some(error(&node.name, found))
    })
}

/// Returns true if the kernel makes new character devices for the attachment's RDMA devices, because they move or
/// because their driver is bound again.
pub(crate) fn renumbers(attachment: &Attachment) -> bool {
    attachment.moves_rdma() || attachment.rails.iter().any(|it| it.driver.is_some())
}

/// Returns the RDMA devices with new character devices, each before and after the move or the bind.
pub(crate) fn moved<'a>(
    attachment: &'a Attachment,
    observed: &'a Observed,
) -> impl Iterator<Item = (&'a RdmaDevice, &'a RdmaDevice)> {
    let moves = attachment.moves_rdma();
    let rails = attachment.rails.iter();
    let rails = rails.filter(move |rail| moves || rail.driver.is_some());
    let devices = rails.filter_map(|rail| rail.rdma.as_ref());
    devices.filter_map(move |before| {
        let namespace = match moves {
            true => observed.pod.as_ref()?,
            false => &observed.host,
        };
        // compare hardware, because binding the driver again makes an RDMA device with another index
        let is_it = |after: &&RdmaDevice| match &before.parent {
            Some(_) => after.parent == before.parent,
            None => after.index == before.index,
        };
        Some((before, namespace.rdma.iter().find(is_it)?))
    })
}

const DETECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for the carrier of moved netdevs.
const CARRIER_TIMEOUT: Duration = Duration::from_secs(5);

/// Observes the pod again until `is_pending` returns false for the last observation, or until the time limit. Returns
/// the last observation.
fn observe_while<K: Kernel>(
    kernel: &K,
    (pod, attachment): (&K::Pod, &Attachment),
    mut observed: Observed,
    limit: Duration,
    is_pending: impl Fn(&Observed) -> bool,
) -> Result<Observed, ObserveError> {
    let deadline = kernel.now() + limit;
    while is_pending(&observed) && kernel.now() < deadline {
        kernel.pause(POLL);
        observed = kernel.observe_vfs(Some(pod), &attachment.vfs())?;
    }
    Ok(observed)
}

/// Waits until duplicate address detection has ended on the rails. Returns an error if another machine has an address,
/// or if the detection has not ended at the time limit.
pub fn await_detection<K: Kernel>(
    kernel: &K,
    pod: &K::Pod,
    attachment: &Attachment,
    observed: Observed,
) -> Result<Observed, ApplyError> {
    let first = |observed: &Observed, is_it: fn(&Address) -> bool| {
        let rails = attachment.rails.iter();
        let links = rails.filter_map(|rail| rail.in_pod(observed));
        let mut addresses = links.flat_map(|link| &link.addresses);
        addresses.find(|it| is_it(it)).map(|it| it.ip)
    };
    let failed = |observed: &Observed| first(observed, |it| it.dad_failed);
    let tentative = |observed: &Observed| first(observed, |it| it.tentative);
    let is_pending = |it: &Observed| failed(it).is_none() && tentative(it).is_some();
    let pod = (pod, attachment);
    let observed = observe_while(kernel, pod, observed, DETECTION_TIMEOUT, is_pending)?;
    match (failed(&observed), tentative(&observed)) {
        (Some(ip), _) => Err(ApplyError::Duplicate(ip)),
        (None, Some(ip)) => Err(ApplyError::Tentative(ip)),
        (None, None) => Ok(observed),
    }
}

/// Waits until the moved netdevs that get addresses have a carrier in the pod, at most 5 s. A driver can report the
/// carrier later than the kernel reports the netdev up: mlx5 after an event of its firmware, iavf after an answer of
/// the PF's driver. Until then the kernel drops probes and announcements without an error (`noop_qdisc`,
/// `net/sched/sch_generic.c`). A missing carrier on the host proves nothing, because a restore may just have returned
/// the netdev.
pub fn await_carrier<K: Kernel>(
    kernel: &K,
    pod: &K::Pod,
    attachment: &Attachment,
    observed: &Observed,
) {
    let is_pending = |observed: &Observed| {
        let mut rails = attachment.rails.iter();
        rails.any(|rail| {
            let host_link = rail.host_link.as_ref();
            host_link.is_some_and(|it| it.link_type == LinkType::Ether)
                && !rail.assigned.addresses.is_empty()
                && rail.in_pod(observed).is_some_and(|it| it.up && !it.carrier)
        })
    };
    if is_pending(observed)
        && let Err(error) = observe_while(
            kernel,
            (pod, attachment),
            observed.clone(),
            CARRIER_TIMEOUT,
            is_pending,
        )
    {
        log::warn!(
            "{}: {error}; ADD does not wait for carriers",
            attachment.key
        );
    }
}

/// Announces the rails' addresses with their hardware addresses to the neighbours. Without an announcement, a router
/// whose cache still maps an address to another pod's hardware address sends to that pod (for 46 s in the lab). The
/// kernel makes no such announcement. `arp_notify` takes effect when a netdev goes up, before it has an address.
/// `ndisc_notify` takes effect at the end of duplicate address detection, which may be off (`inetdev_event()`,
/// `net/ipv4/devinet.c`; `addrconf_dad_completed()`, `net/ipv6/addrconf.c`).
///
/// Does not announce link-local addresses, because they derive from the hardware address. Does not announce tentative
/// addresses, because another machine may have them (RFC 4862, section 5.4; RFC 4429, section 2.1). Only logs a failed
/// announcement, because neighbours later find the new hardware address themselves.
pub fn announce<K: Kernel>(kernel: &K, pod: &K::Pod, attachment: &Attachment, observed: &Observed) {
    for rail in attachment.rails.iter().filter(|rail| rail.is_ours()) {
        let Some(link) = rail.in_pod(observed) else {
            continue;
        };
        let assigned = rail.assigned.addresses.iter();
        let present = assigned.filter_map(|address| link.address(address));
        for address in present.filter(|it| !it.is_link_local() && !it.tentative) {
            let announce = LinkChange::Announce(address.ip);
            let op = Op::link(NetnsSide::Pod, &rail.pod_name, announce);
            log::debug!("{op}");
            if let Err(error) = kernel.execute(&op, Some(pod)) {
                log::warn!(
                    "{error}; neighbours may still cache the old MAC address of {}",
                    address.ip
                );
            }
        }
    }
}
