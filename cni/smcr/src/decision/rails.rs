// SPDX-License-Identifier: Apache-2.0
//! RDMA ports that can carry a pod's connections, and their pnet ids. By default, the pnet id of a NIC is its hardware
//! address, so that each NIC has a different id. If several NICs had one id, the kernel might choose a NIC that does
//! not reach the peer. The connection would then wait 5 s.

use attachments::{Attachment, Rail};
use rdma_netns::{
    Link, Observed, RdmaDevice,
    pairing::ERDMA,
    smc::{PnetEntry, PnetId, SmcState},
};

/// RDMA port of a rail, and the port's pnet entry. The entry may not exist yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// Index of the rail in the attachment.
    pub rail: usize,
    /// Entry of the port in the host's table.
    pub entry: PnetEntry,
    /// Name of the RDMA device.
    pub device: String,
    /// Number of the port of the RDMA device, from 1.
    pub port: u8,
}

/// Reason why SMC-R cannot use a rail's RDMA device, or any RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Blocker {
    /// The kernel has no SMC.
    #[error(
        "this kernel has no SMC: it needs CONFIG_SMC, or its module smc (and smc_diag) installed"
    )]
    NoSmc,
    /// The rail has no RDMA device. For a whole pod: no rail has an RDMA device.
    #[error("the pod has no RDMA device")]
    NoRdma,
    /// The eRDMA driver is in compat mode. In this mode neither SMC-R nor RDMA's connection manager works.
    #[error(
        "{device} is an eRDMA device, and its driver is in compat mode, which has no SMC-R: load \
         erdma with compat_mode=N"
    )]
    Compat {
        /// Name of the RDMA device.
        device: String,
    },
    /// Mainline's SMC refuses iWARP devices (`smc_ib_add_dev()`, `net/smc/smc_ib.c`).
    #[error(
        "this kernel's SMC does not use {device}: only the SMC of Alibaba Cloud Linux 3 uses iWARP devices, such as eRDMA's"
    )]
    Unused {
        /// Name of the RDMA device.
        device: String,
    },
    /// The rail has no netdev with an Ethernet hardware address.
    #[error("{device} has no Ethernet port, which SMC-R needs")]
    NotEthernet {
        /// Name of the RDMA device.
        device: String,
    },
    /// The RDMA device is not in the pod.
    #[error(
        "RDMA device {device} is not in the pod, which in exclusive mode can use only its own devices"
    )]
    NotInPod {
        /// Name of the RDMA device.
        device: String,
    },
    /// Another port of the device already has a pnet id. The kernel stores only one entry for a device.
    #[error(
        "another port of {device} has pnet id {id}, and the kernel keeps only one pnet id for a device"
    )]
    OtherPort {
        /// Name of the RDMA device.
        device: String,
        /// Pnet id of the other port.
        id: PnetId,
    },
    /// Two NICs would have the same pnet id.
    #[error(
        "the pnet id of {device} would be {id}, its NIC's hardware address, which {other} has already: \
         give one of them another id with smc_pnet"
    )]
    IdTaken {
        /// Name of the RDMA device.
        device: String,
        /// Pnet id of both devices.
        id: PnetId,
        /// RDMA device that already has the id.
        other: String,
    },
}

/// Returns the reason why the pod's connections must stay TCP, if this is known before the first change:
/// - A kernel without SMC is a reason.
/// - If SMC-R is `required`, one unusable rail is a reason.
/// - If SMC-R is optional, there is a reason only if no rail is usable.
/// - Rails without an RDMA device are a reason only if no rail has an RDMA device.
pub fn blocker(
    attachment: &Attachment,
    observed: &Observed,
    smc_state: Option<&SmcState>,
    required: bool,
) -> Option<Blocker> {
    let Some(smc_state) = smc_state else {
        return Some(Blocker::NoSmc);
    };
    let found = carriers(attachment, observed, smc_state, false);
    let mut blockers = found.iter().filter_map(|it| it.as_ref().err());
    let of_device = blockers.find(|it| **it != Blocker::NoRdma);
    match (found.iter().any(Result::is_ok), of_device) {
        (true, _) if !required => None,
        (true, of_device) => of_device.cloned(),
        (false, of_device) => Some(of_device.cloned().unwrap_or(Blocker::NoRdma)),
    }
}

/// Returns the RDMA port of each rail, or the reason why SMC-R cannot use it. `moved` is true if the rails are in the
/// pod.
pub fn carriers(
    attachment: &Attachment,
    observed: &Observed,
    smc_state: &SmcState,
    moved: bool,
) -> Vec<Result<Carrier, Blocker>> {
    let mut found: Vec<Result<Carrier, Blocker>> = vec![];
    for (index, rail) in attachment.rails.iter().enumerate() {
        let carrier = carrier(attachment, index, rail, observed, smc_state, moved);
        let carrier = carrier.and_then(|carrier| {
            let earlier = found.iter().flatten();
            let earlier = earlier.map(|it| &it.entry);
            check_id(carrier, earlier.chain(&smc_state.host))
        });
        found.push(carrier);
    }
    found
}

/// Refuses a pnet id that another RDMA device already has. If the kernel's table already has exactly this entry,
/// accepts it: an administrator may give two devices one id.
fn check_id<'a>(
    carrier: Carrier,
    mut entries: impl Iterator<Item = &'a PnetEntry> + Clone,
) -> Result<Carrier, Blocker> {
    if entries.clone().any(|it| *it == carrier.entry) {
        return Ok(carrier);
    }
    let other = entries.find_map(|entry| {
        let (device, _) = entry.rdma.as_ref()?;
        (entry.name == carrier.entry.name && *device != carrier.device).then_some(device)
    });
    match other {
        None => Ok(carrier),
        Some(other) => Err(Blocker::IdTaken {
            device: carrier.device,
            id: carrier.entry.name,
            other: other.clone(),
        }),
    }
}

/// Returns the RDMA device and port of the rail with the index `index`. Returns `None` if the rail has no RDMA device.
pub fn port_of(attachment: &Attachment, index: usize, observed: &Observed) -> Option<(String, u8)> {
    let rail = attachment.rails.get(index)?;
    let rdma = rail.rdma.as_ref()?;
    let link = rail.on_host(observed).or_else(|| rail.in_pod(observed));
    Some((rdma.name.clone(), port(rdma, link, observed)))
}

fn carrier(
    attachment: &Attachment,
    index: usize,
    rail: &Rail,
    observed: &Observed,
    smc_state: &SmcState,
    moved: bool,
) -> Result<Carrier, Blocker> {
    let rdma = rail.rdma.as_ref().ok_or(Blocker::NoRdma)?;
    let device = rdma.name.clone();
    if smc_state.erdma_compat == Some(true) && is_erdma(rdma, observed) {
        return Err(Blocker::Compat { device });
    }
    // if the kernel does not list SMC's devices, assume that only kernels with tcp2smc use eRDMA devices for SMC
    let is_used = match &smc_state.devices {
        Some(devices) => devices.contains(&device),
        None => smc_state.tcp2smc.is_some() || !is_erdma(rdma, observed),
    };
    if !is_used {
        return Err(Blocker::Unused { device });
    }
    let is_same = |other: &RdmaDevice| other.index == rdma.index;
    let is_in_pod = observed.pod.iter().flat_map(|pod| &pod.rdma).any(is_same);
    if moved && attachment.moves_rdma() && !is_in_pod {
        return Err(Blocker::NotInPod { device });
    }
    let link = rail.on_host(observed).or_else(|| rail.in_pod(observed));
    let port = port(rdma, link, observed);
    let of_device = smc_state.host.iter().find_map(|entry| {
        let (name, port) = entry.rdma.as_ref()?;
        (*name == device).then_some((entry, *port))
    });
    let id = match of_device {
        Some((entry, present)) if present == port => entry.name.clone(),
        Some((entry, _)) => {
            let id = entry.name.clone();
            return Err(Blocker::OtherPort { device, id });
        }
        None => {
            let base = base(attachment, &rail.pod_name, observed, smc_state);
            let base = base.map(|it| it.name.clone());
            match base.or_else(|| own_id(rail, link)) {
                Some(id) => id,
                None => return Err(Blocker::NotEthernet { device }),
            }
        }
    };
    let entry = PnetEntry {
        name: id,
        netdev: None,
        rdma: Some((device.clone(), port)),
    };
    Ok(Carrier {
        rail: index,
        entry,
        device,
        port,
    })
}

fn is_erdma(rdma: &RdmaDevice, observed: &Observed) -> bool {
    let device = rdma.parent.as_ref().and_then(|it| observed.device(it));
    device.is_some_and(|it| it.driver.as_deref() == Some(ERDMA) || !it.rdma_functions.is_empty())
}

/// Returns the number of the RDMA port that belongs to `link`, the rail's netdev. If `link` is a bond, returns the RDMA
/// port of a port of the bond. If `link` has no RDMA port, returns the device's first port.
fn port(rdma: &RdmaDevice, link: Option<&Link>, observed: &Observed) -> u8 {
    let index = link.map(|link| link.index);
    let of_bond = |netdev: u32| {
        let port = observed.host.link_by_index(netdev);
        index.is_some() && port.is_some_and(|port| port.master == index)
    };
    let is_its = |netdev: u32| Some(netdev) == index || of_bond(netdev);
    let found = rdma.ports.iter().find(|it| it.netdev.is_some_and(is_its));
    let port = found.or_else(|| rdma.ports.first());
    port.and_then(|port| u8::try_from(port.number).ok())
        .unwrap_or(1)
}

/// Largest depth of stacked netdevs in the kernel (`MAX_NEST_DEV`).
const NESTED: usize = 8;

/// Returns the pnet entry of the host's lowest netdev below the pod's interface `name`. The kernel searches for this
/// entry first, also for child netdevs in pods (`pnet_find_base_ndev()`, `smc_pnet_find_ndev_pnetid_by_table()`). It
/// therefore prefers this entry to the pod's entry.
pub(super) fn base<'a>(
    attachment: &Attachment,
    name: &str,
    observed: &Observed,
    smc_state: &'a SmcState,
) -> Option<&'a PnetEntry> {
    let rail = attachment.rails.iter().find(|it| *it.pod_name == *name);
    let parent = match rail.and_then(|rail| rail.shared.as_ref()) {
        Some(shared) => Some(shared.parent_index),
        None => parent_on_host(observed.pod.as_ref()?.link(name)?),
    };
    let host = &observed.host;
    let mut below: Vec<&Link> = host.link_by_index(parent?).into_iter().collect();
    for _ in 0..NESTED {
        let lower = below.iter().flat_map(|link| {
            let ports = host.links.iter().filter(|it| it.master == Some(link.index));
            ports.chain(link.lower.and_then(|index| host.link_by_index(index)))
        });
        let lower: Vec<&Link> = lower.collect();
        if lower.is_empty() {
            break;
        }
        below = lower;
    }
    below.into_iter().find_map(|link| {
        let is_its = |entry: &&PnetEntry| entry.netdev.as_deref() == Some(&*link.name);
        smc_state.host.iter().find(is_its)
    })
}

/// Returns the index of the host netdev that is the parent of the pod's netdev `link`. Returns `None` if `link` is
/// neither a macvlan nor an ipvlan.
pub(super) fn parent_on_host(link: &Link) -> Option<u32> {
    let is_child = matches!(link.kind.as_deref(), Some("macvlan" | "ipvlan"));
    link.lower.filter(|_| is_child)
}

/// Returns the pnet id of the NIC: its hardware address on the host. The address in the pod can differ, because some
/// drivers change it in a move (igbvf). If an earlier plugin moved the netdev, the id is the permanent address.
fn own_id(rail: &Rail, link: Option<&Link>) -> Option<PnetId> {
    let link = link?;
    let burnt_in = link.permanent_mac.as_ref().filter(|_| !rail.is_ours());
    PnetId::from_mac(burnt_in.unwrap_or(&link.mac))
}
