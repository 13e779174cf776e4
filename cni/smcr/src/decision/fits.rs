// SPDX-License-Identifier: Apache-2.0
//! Checks whether the kernel would carry an interface's connections by SMC-R. Uses the observed state and the records
//! of other pods.

use super::{
    rails::{self, parent_on_host},
    reason::SkipReason,
    verdict::{Netdev, Owner, Source, View, verdict},
};
use attachments::{Attachment, Fit, Rail};
use rdma_netns::{
    GidTable, InterfaceName, Link, Observed, RdmaMode,
    smc::{PnetEntry, PnetId, SmcState},
};
use std::net::IpAddr;

/// Input of the decisions that set up or check a pod's SMC-R.
#[derive(Clone, Copy, Debug)]
pub struct SmcInput<'a> {
    /// Record of the attachment.
    pub attachment: &'a Attachment,
    /// Records of other attachments.
    pub others: &'a [Attachment],
    /// Observed state of host and pod.
    pub observed: &'a Observed,
    /// Observed state of SMC.
    pub smc_state: &'a SmcState,
    /// GIDs of each rail's port, as the pod sees them. `None`: the rails are not in the pod yet, and the decisions
    /// assume that their GIDs fit.
    pub gids: Option<&'a [Option<GidTable>]>,
    /// Primary interface of the pod. If set, SMC-R may also carry the connections of this interface, in addition to the
    /// rails.
    pub primary: Option<&'a str>,
    /// Value of `smcUeid`.
    pub ueid: Option<&'a str>,
}

/// Returns the protocol by which the RDMA port of the rail with the index `rail` carries connections of the pod's
/// interface `name`. Returns an error if no protocol carries them correctly, or if the host's netdev below the interface
/// has another pnet id than the port. `id` is the port's pnet id.
pub(super) fn fits(
    input: SmcInput<'_>,
    rail: usize,
    id: &PnetId,
    name: &str,
) -> Result<Fit, SkipReason> {
    let fit = fit_by_gids(input, rail, name);
    match base(input, name) {
        Some(base) if base.name != *id && fit != Err(SkipReason::NoIpv4) => {
            Err(SkipReason::ParentsId {
                netdev: base.netdev.clone().unwrap_or_default(),
                id: base.name.clone(),
            })
        }
        _ => fit,
    }
}

/// Returns the host's pnet entry that the kernel prefers to the pod's entry for the interface `name`.
pub(super) fn base<'a>(input: SmcInput<'a>, name: &str) -> Option<&'a PnetEntry> {
    rails::base(input.attachment, name, input.observed, input.smc_state)
}

/// Returns the protocol like [`fits`], but does not check the pnet id of the host's netdev. The protocol is SMC-Rv2 if
/// SMC-Rv2 fits at least one address of the interface. If the kernel might use a foreign GID for an address, returns an
/// error for the whole interface.
fn fit_by_gids(input: SmcInput<'_>, rail: usize, name: &str) -> Result<Fit, SkipReason> {
    let Some(gids) = input.gids else {
        return Ok(Fit::V2);
    };
    let pod = input.observed.pod.as_ref();
    let link = pod.and_then(|pod| pod.link(name));
    let gids = gids.get(rail).and_then(Option::as_ref);
    let rail = &input.attachment.rails[rail];
    let device = || rail.rdma.iter().map(|it| &*it.name).collect();
    let gids = gids.ok_or_else(|| SkipReason::Unseen(device()))?;
    let view = View {
        gids,
        netdevs: &netdevs(input, rail),
        alone: rail.shared.is_none(),
        has_ueid: input.ueid.is_some() || !input.smc_state.ueids.is_empty(),
    };
    let mut found = Err(SkipReason::NoIpv4);
    for source in link.into_iter().flat_map(|link| sources(input, link)) {
        match verdict(view, source) {
            Err(misfit @ SkipReason::Strange { .. }) => return Err(misfit),
            Err(misfit) if found == Err(SkipReason::NoIpv4) => found = Err(misfit),
            Err(_) => {}
            Ok(fit) if found != Ok(Fit::V2) => found = Ok(fit),
            Ok(_) => {}
        }
    }
    // SMC-Rv1 needs the RDMA NICs of both ends in one layer 2 network. The kernel compares only the prefixes of the TCP
    // interfaces, so only a rail's own address may have SMC-Rv1
    let is_rail = input
        .attachment
        .rails
        .iter()
        .any(|it| *it.pod_name == *name);
    match (found, other_user(input)) {
        (Ok(Fit::V1), _) if !is_rail => Err(SkipReason::OneLink),
        (Ok(Fit::V2), Some(other)) => Err(SkipReason::Crowded {
            holder: other.holder(),
        }),
        (found, _) => found,
    }
}

/// Returns the possible local addresses of IPv4 connections that use the pod's netdev `link`: its addresses with global
/// scope.
pub(super) fn sources<'a>(input: SmcInput<'a>, link: &'a Link) -> impl Iterator<Item = Source> {
    let vlan = is_vlan(input.observed, link);
    let addresses = link.addresses.iter().filter(|address| address.scope == 0);
    addresses.filter_map(move |address| match address.ip {
        IpAddr::V4(ip) => Some(Source {
            ip,
            prefix: address.prefix,
            vlan,
        }),
        IpAddr::V6(_) => None,
    })
}

/// Returns true if the pod's netdev `link` is a VLAN, or a child of a VLAN (`smc_vlan_by_tcpsk()`,
/// `net/smc/smc_core.c`).
fn is_vlan(observed: &Observed, link: &Link) -> bool {
    let is_vlan_netdev = |link: &Link| link.kind.as_deref() == Some("vlan");
    let parent = parent_on_host(link).and_then(|index| observed.host.link_by_index(index));
    is_vlan_netdev(link) || parent.is_some_and(is_vlan_netdev)
}

/// Returns another pod whose connections could share link groups with this pod's connections. In shared mode, any other
/// pod with SMC-R is such a pod, whatever its RDMA device: a server distinguishes link groups only by the peer's GID,
/// and not by pod or device (`smcr_lgr_match()`, `net/smc/smc_core.c`). Pods that have only [`Fit::Device`] are not
/// such pods.
fn other_user(input: SmcInput<'_>) -> Option<&Attachment> {
    let attachment = input.attachment;
    let uses = |other: &&Attachment| {
        let interfaces = other.smc.iter().flat_map(|smc| &smc.interfaces);
        let mut by = interfaces.map(|it| it.by);
        other.netns_id != attachment.netns_id && by.any(|by| by != Fit::Device)
    };
    let mut others = input.others.iter();
    others
        .find(uses)
        .filter(|_| attachment.rdma_mode == Some(RdmaMode::Shared))
}

/// Returns the record's interfaces that SMC-R does not fit at present. Each has a reason.
pub fn misfits(input: SmcInput<'_>) -> Vec<(String, SkipReason)> {
    let Some(smc) = &input.attachment.smc else {
        return vec![];
    };
    let mut misfits = vec![];
    for carried in &smc.interfaces {
        let rails = &input.attachment.rails;
        let is_its = |it: &Rail| {
            it.rdma
                .as_ref()
                .is_some_and(|it| it.name == carried.rdma_device)
        };
        let Some(rail) = rails.iter().position(is_its) else {
            continue;
        };
        if let Err(reason) = fits(input, rail, &carried.pnet_id, &carried.interface) {
            misfits.push((carried.interface.clone(), reason));
        }
    }
    misfits
}

/// Returns the tables of `gids` without the GIDs of other pods' addresses. `others` may include attachments of the same
/// pod, whose addresses remain. If another pod has an address of this pod, one GID of each kind remains.
pub fn without_other_pods(
    attachment: &Attachment,
    others: &[Attachment],
    gids: &[Option<GidTable>],
) -> Vec<Option<GidTable>> {
    let of = |attachment: &Attachment| -> Vec<(InterfaceName, IpAddr)> {
        let of_rail = |rail: &Rail| {
            let addresses = rail.assigned.addresses.iter();
            let ips = addresses.map(|it| it.peer.unwrap_or(it.ip));
            ips.map(|ip| (rail.pod_name.clone(), ip))
                .collect::<Vec<_>>()
        };
        attachment.rails.iter().flat_map(of_rail).collect()
    };
    let is_own = |it: &&Attachment| it.netns_id == attachment.netns_id;
    let own = others.iter().filter(is_own);
    let own: Vec<_> = own.chain([attachment]).flat_map(of).collect();
    let theirs = others.iter().filter(|it| !is_own(it));
    let theirs: Vec<_> = theirs.flat_map(of).collect();
    let mut gids = gids.to_vec();
    for table in gids.iter_mut().flatten() {
        let mut kept = vec![];
        table.gids.retain(|gid| {
            let has_it = |(name, ip): &(InterfaceName, IpAddr)| {
                let named = gid.netdev.as_ref().is_none_or(|it| *it == **name);
                named && *ip == gid.address()
            };
            let is_others = theirs.iter().any(|(_, ip)| *ip == gid.address());
            let is_first = !kept.contains(&(gid.kind, gid.ip));
            let remains = !is_others || is_first && own.iter().any(has_it);
            if remains {
                kept.push((gid.kind, gid.ip));
            }
            remains
        });
    }
    gids
}

/// Returns the netdevs that can have GIDs on the RDMA port of `rail`: netdevs of the pod, netdevs of the host, and
/// netdevs in records of other pods.
fn netdevs<'a>(input: SmcInput<'a>, rail: &Rail) -> Vec<Netdev<'a>> {
    let observed = input.observed;
    let of = |link: &'a Link, owner, is_on_port| Netdev {
        name: &link.name,
        addresses: &link.addresses,
        vlan: is_vlan(observed, link),
        owner,
        is_on_port,
    };
    let pod = observed.pod.iter().flat_map(|pod| &pod.links);
    let pod = pod.map(|link| of(link, Owner::Pod, false));
    let parent = rail.shared.as_ref().map(|shared| shared.parent_index);
    let is_parents = |link: &Link| [Some(link.index), link.master, link.lower].contains(&parent);
    let host = observed.host.links.iter();
    let host = host.map(|link| of(link, Owner::Host, parent.is_some() && is_parents(link)));
    let device = rail.rdma.as_ref().map(|rdma| &rdma.name);
    let is_on_device = |other: &Rail| {
        let its = other.rdma.as_ref().map(|rdma| &rdma.name);
        parent.is_some() && device.is_some() && its == device
    };
    let is_other = |it: &&Attachment| it.netns_id != input.attachment.netns_id;
    let others = input.others.iter().filter(is_other).flat_map(|other| {
        other.rails.iter().map(move |rail| Netdev {
            name: &rail.pod_name,
            addresses: &rail.assigned.addresses,
            vlan: false,
            owner: Owner::Another(other),
            is_on_port: is_on_device(rail),
        })
    });
    pod.chain(host).chain(others).collect()
}
