// SPDX-License-Identifier: Apache-2.0
//! Which RDMA ports can carry a pod's connections, and by which pnet ids.
//!
//! Each NIC has an id of its own, its hardware address. One id for several NICs costs 5 s a
//! connection wherever the kernel chooses one that does not reach the peer.

use attachments::{Attachment, Rail};
use rdma_netns::{
    Link, Observed, RdmaDevice,
    pairing::ERDMA,
    smc::{PnetEntry, PnetId, SmcState},
};

/// A rail's RDMA port, and the id that it has or is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// Which rail, counted from 0.
    pub rail: usize,
    /// The port's entry in the host's table.
    pub entry: PnetEntry,
    /// The RDMA device.
    pub device: String,
    /// The RDMA device's port, from 1.
    pub port: u8,
}

/// Why a rail's RDMA device cannot carry TCP, or nothing can.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Blocker {
    /// The kernel has none of it.
    #[error(
        "this kernel has no SMC: it needs CONFIG_SMC, or its module smc (and smc_diag) installed"
    )]
    NoSmc,
    /// No rail has one.
    #[error("the pod has no RDMA device")]
    NoRdma,
    /// eRDMA in the mode for programs that use RDMA's own connection manager.
    #[error(
        "{device} is an eRDMA device, and its driver is in compat mode, which has no SMC-R: load \
         erdma with compat_mode=N"
    )]
    Compat {
        /// The RDMA device.
        device: String,
    },
    /// As mainline's, which takes no iWARP devices (`smc_ib_add_dev()`, `net/smc/smc_ib.c`).
    #[error(
        "this kernel's SMC does not use {device}: iWARP devices, as eRDMA's are, only that of Alibaba Cloud Linux 3 does"
    )]
    Unused {
        /// The RDMA device.
        device: String,
    },
    /// Neither RoCE nor iWARP.
    #[error("{device} has no Ethernet port, which SMC-R needs")]
    NotEthernet {
        /// The RDMA device.
        device: String,
    },
    /// The pod does not see it.
    #[error(
        "RDMA device {device} is not in the pod, where the RDMA subsystem's exclusive mode would \
         have it be"
    )]
    NotInPod {
        /// The RDMA device.
        device: String,
    },
    /// The kernel keeps one entry for a device, whichever port it is of.
    #[error("another port of {device} has pnet id {id}, and the kernel keeps one for a device")]
    OtherPort {
        /// The RDMA device.
        device: String,
        /// The id.
        id: PnetId,
    },
    /// The id would stand for two NICs.
    #[error(
        "the pnet id of {device} would be {id}, its NIC's hardware address, which is {other}'s \
         already: give one of them another with smc_pnet"
    )]
    IdTaken {
        /// The RDMA device.
        device: String,
        /// The id.
        id: PnetId,
        /// Who has it.
        other: String,
    },
}

/// What keeps the pod's connections on TCP, as far as it is known before anything is changed: all
/// of them, or any where SMC-R is `required`. A rail without an RDMA device hinders only alone.
pub fn blocker(
    attachment: &Attachment,
    observed: &Observed,
    seen: Option<&SmcState>,
    required: bool,
) -> Option<Blocker> {
    let Some(seen) = seen else {
        return Some(Blocker::NoSmc);
    };
    let found = carriers(attachment, observed, seen, false);
    let mut blockers = found.iter().filter_map(|it| it.as_ref().err());
    let of_device = blockers.find(|it| **it != Blocker::NoRdma);
    match (found.iter().any(Result::is_ok), of_device) {
        (true, _) if !required => None,
        (true, of_device) => of_device.cloned(),
        (false, of_device) => Some(of_device.cloned().unwrap_or(Blocker::NoRdma)),
    }
}

/// The carrier of each rail, or why it is none. `moved`: the rails are where they are to be.
pub fn carriers(
    attachment: &Attachment,
    observed: &Observed,
    seen: &SmcState,
    moved: bool,
) -> Vec<Result<Carrier, Blocker>> {
    let mut found: Vec<Result<Carrier, Blocker>> = vec![];
    for (index, rail) in attachment.rails.iter().enumerate() {
        let carrier = carrier(attachment, index, rail, observed, seen, moved);
        let carrier = carrier.and_then(|carrier| {
            let earlier = found.iter().flatten();
            let earlier = earlier.map(|it| &it.entry);
            check_id(carrier, earlier.chain(&seen.host))
        });
        found.push(carrier);
    }
    found
}

/// Refuses an id that another RDMA device has. One that an operator gave both is theirs to answer
/// for: it is in the table already.
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

/// The RDMA device and port of rail `index`, if it has one.
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
    seen: &SmcState,
    moved: bool,
) -> Result<Carrier, Blocker> {
    let rdma = rail.rdma.as_ref().ok_or(Blocker::NoRdma)?;
    let device = rdma.name.clone();
    if seen.erdma_compat == Some(true) && is_erdma(rdma, observed) {
        return Err(Blocker::Compat { device });
    }
    // where the kernel does not tell, the one that has tcp2smc uses eRDMA
    let is_used = match &seen.devices {
        Some(devices) => devices.contains(&device),
        None => seen.tcp2smc.is_some() || !is_erdma(rdma, observed),
    };
    if !is_used {
        return Err(Blocker::Unused { device });
    }
    let is_it = |other: &RdmaDevice| other.index == rdma.index;
    let is_in_pod = observed.pod.iter().flat_map(|pod| &pod.rdma).any(is_it);
    if moved && attachment.moves_rdma() && !is_in_pod {
        return Err(Blocker::NotInPod { device });
    }
    let link = rail.on_host(observed).or_else(|| rail.in_pod(observed));
    let port = port(rdma, link, observed);
    let of_device = seen.host.iter().find_map(|entry| {
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
            let base = base(attachment, &rail.pod_name, observed, seen);
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

/// The port that has the rail's netdev, as it was on the host, or the bond's that is one of its
/// ports; else the first.
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

/// How many netdevs can lie on each other (`MAX_NEST_DEV`).
const NESTED: usize = 8;

/// The entry of the netdev on the host that the pod's interface `name` lies on: the kernel looks
/// there first, also for connections of children in pods (`pnet_find_base_ndev()`,
/// `smc_pnet_find_ndev_pnetid_by_table()`), so that it counts before the pod's own.
pub(super) fn base<'a>(
    attachment: &Attachment,
    name: &str,
    observed: &Observed,
    seen: &'a SmcState,
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
        seen.host.iter().find(is_its)
    })
}

/// The index on the host of the netdev that a pod's netdev is a child of.
pub(super) fn parent_on_host(link: &Link) -> Option<u32> {
    let is_child = matches!(link.kind.as_deref(), Some("macvlan" | "ipvlan"));
    link.lower.filter(|_| is_child)
}

/// The id that is the NIC's own: its hardware address as it is on the host. Drivers can give it
/// another one with a move (igbvf). A netdev that an earlier plugin moved is asked for the one
/// that is burnt in.
fn own_id(rail: &Rail, link: Option<&Link>) -> Option<PnetId> {
    let link = link?;
    let burnt_in = link.permanent_mac.as_ref().filter(|_| !rail.is_ours());
    PnetId::from_mac(burnt_in.unwrap_or(&link.mac))
}
