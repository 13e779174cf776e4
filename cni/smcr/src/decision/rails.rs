// SPDX-License-Identifier: Apache-2.0
//! RDMA ports that can carry a pod's connections, and their pnet ids. By default, the pnet id of a NIC is its hardware
//! address, so that each NIC has a different id. If several NICs had one id, the kernel might choose a NIC that does
//! not reach the peer. The connection would then wait 5 s.

use super::{port_entry, reason::SkipReason};
use attachments::{Attachment, Rail};
use rdma_netns::{
    Link, Observed, RdmaDevice,
    pairing::ERDMA,
    smc::{PnetEntry, PnetId, SmcState},
};

/// RDMA port of a rail, and the port's pnet id. The id may not be in the host's table yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Carrier {
    /// Index of the rail in the attachment.
    pub(super) rail: usize,
    /// Pnet id of the port.
    pub(super) id: PnetId,
    /// Name of the RDMA device.
    pub(super) device: String,
    /// Number of the port of the RDMA device, from 1.
    pub(super) port: u8,
}

impl Carrier {
    /// Returns the entry of the port in the host's table.
    pub(super) fn entry(&self) -> PnetEntry {
        port_entry(&self.id, &self.device, self.port)
    }
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
) -> Option<SkipReason> {
    let Some(smc_state) = smc_state else {
        return Some(SkipReason::NoSmc);
    };
    let found = carriers(attachment, observed, smc_state, false);
    let mut blockers = found.iter().filter_map(|it| it.as_ref().err());
    let of_device = blockers.find(|it| **it != SkipReason::NoRdma);
    match (found.iter().any(Result::is_ok), of_device) {
        (true, _) if !required => None,
        (true, of_device) => of_device.cloned(),
        (false, of_device) => Some(of_device.cloned().unwrap_or(SkipReason::NoRdma)),
    }
}

/// Returns the RDMA port of each rail, or the reason why SMC-R cannot use it. `moved` is true if the rails are in the
/// pod.
pub(super) fn carriers(
    attachment: &Attachment,
    observed: &Observed,
    smc_state: &SmcState,
    moved: bool,
) -> Vec<Result<Carrier, SkipReason>> {
    let mut found: Vec<Result<Carrier, SkipReason>> = vec![];
    let mut earlier: Vec<PnetEntry> = vec![];
    for (index, rail) in attachment.rails.iter().enumerate() {
        let carrier = carrier(attachment, index, rail, observed, smc_state, moved);
        let carrier = carrier.and_then(|it| check_id(it, earlier.iter().chain(&smc_state.host)));
        earlier.extend(carrier.iter().map(Carrier::entry));
        found.push(carrier);
    }
    found
}

/// Refuses a pnet id that another RDMA device already has. If the kernel's table already has exactly this entry,
/// accepts it: an administrator may give two devices one id.
fn check_id<'a>(
    carrier: Carrier,
    mut entries: impl Iterator<Item = &'a PnetEntry> + Clone,
) -> Result<Carrier, SkipReason> {
    let own = carrier.entry();
    if entries.clone().any(|it| *it == own) {
        return Ok(carrier);
    }
    let other = entries.find_map(|entry| {
        let (device, _) = entry.rdma.as_ref()?;
        (entry.name == carrier.id && *device != carrier.device).then_some(device)
    });
    match other {
        None => Ok(carrier),
        Some(other) => Err(SkipReason::IdTaken {
            device: carrier.device,
            id: carrier.id,
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
) -> Result<Carrier, SkipReason> {
    let rdma = rail.rdma.as_ref().ok_or(SkipReason::NoRdma)?;
    let device = rdma.name.clone();
    if smc_state.erdma_compat == Some(true) && is_erdma(rdma, observed) {
        return Err(SkipReason::Compat { device });
    }
    // if the kernel does not list SMC's devices, assume that only kernels with tcp2smc use eRDMA devices for SMC
    let is_used = match &smc_state.devices {
        Some(devices) => devices.contains(&device),
        None => smc_state.tcp2smc.is_some() || !is_erdma(rdma, observed),
    };
    if !is_used {
        return Err(SkipReason::Unused { device });
    }
    let is_same = |other: &RdmaDevice| other.index == rdma.index;
    let is_in_pod = observed.pod.iter().flat_map(|pod| &pod.rdma).any(is_same);
    if moved && attachment.moves_rdma() && !is_in_pod {
        return Err(SkipReason::NotInPod { device });
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
            return Err(SkipReason::OtherPort { device, id });
        }
        None => {
            let base = base(attachment, &rail.pod_name, observed, smc_state);
            let base = base.map(|it| it.name.clone());
            match base.or_else(|| own_id(rail, link)) {
                Some(id) => id,
                None => return Err(SkipReason::NotEthernet { device }),
            }
        }
    };
    Ok(Carrier {
        rail: index,
        id,
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
