// SPDX-License-Identifier: Apache-2.0
//! Whether an interface's connections would be carried, by all that is known of host and pods.

use super::{
    rails::{self, Blocker, Carrier, parent_on_host},
    verdict::{Misfit, Netdev, Owner, Source, View, verdict},
};
use attachments::{Attachment, Fit, Rail};
use rdma_netns::{
    GidTable, Link, Observed, RdmaMode,
    smc::{PnetEntry, PnetId, SmcState},
};
use std::net::IpAddr;

/// All that SMC-R is chosen by.
#[derive(Clone, Copy, Debug)]
pub struct SmcInput<'a> {
    /// The pod's record.
    pub attachment: &'a Attachment,
    /// The records of other attachments.
    pub others: &'a [Attachment],
    /// Host and pod.
    pub observed: &'a Observed,
    /// What of SMC they have.
    pub seen: &'a SmcState,
    /// The GIDs of each rail's port as the pod sees them; none: the rails are not in the pod yet,
    /// and are taken to fit.
    pub gids: Option<&'a [Option<GidTable>]>,
    /// The pod's primary interface, whose connections are to be carried besides the rails'.
    pub primary: Option<&'a str>,
    /// `smcUeid`
    pub ueid: Option<&'a str>,
}

/// Why an interface goes without SMC-R.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SkipReason {
    /// The kernel's choice.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// Its RDMA device.
    #[error(transparent)]
    Blocker(#[from] Blocker),
    /// SMC-Rv2 and eRDMA carry IPv4 only.
    #[error("it has no IPv4 address, and SMC-R carries IPv4")]
    NoIpv4,
    /// Somebody else has given it an id.
    #[error("it has pnet id {0} already, which is not the RDMA device's")]
    OtherId(PnetId),
    /// The netdev that it lies on has an id, which counts before the pod's.
    #[error(
        "{netdev} on the host has pnet id {id}, which counts before the pod's own and is not the \
         RDMA device's: AF_SMC sockets go by whichever RDMA device has it; remove the id of {netdev} \
         on the host"
    )]
    ParentsId {
        /// The netdev on the host.
        netdev: String,
        /// Its id.
        id: PnetId,
    },
    /// It would be carried wrongly, and nothing in the pod can prevent it.
    #[error(
        "{reason}; its AF_SMC sockets can be carried so all the same, as long as an RDMA device has \
         pnet id {id}: {netdev} on the host has it, which counts before the pod's own; remove the id \
         of {netdev} on the host"
    )]
    Exposed {
        /// What is wrong.
        reason: Box<SkipReason>,
        /// The netdev on the host.
        netdev: String,
        /// Its id.
        id: PnetId,
    },
    /// The kernel would mix up the connections of two pods.
    #[error(
        "{holder} has SMC-R already, and where RDMA devices are shared the kernel carries \
         connections of several pods by one link group, with the addresses of the first: its end \
         would break the others'; give pods RDMA devices of their own (exclusive mode)"
    )]
    Crowded {
        /// Who has it.
        holder: String,
    },
    /// SMC-Rv1 is not routed, and the kernel compares the prefixes of the TCP interfaces alone
    /// (`smc_listen_prfx_check()`, `net/smc/af_smc.c`): with the RDMA NICs on two links a
    /// connection waits 5 s, and its data can be corrupt (docs/dev/smc-r-kernel.md).
    #[error(
        "only SMC-Rv1 could carry it, which needs the RDMA NICs of both ends on one link, and that \
         cannot be seen here; connections by the RDMA interfaces' own addresses can have SMC-R"
    )]
    OneLink,
    /// The GIDs cannot be read.
    #[error("the GIDs of {0} are not to be had in the pod")]
    Unseen(String),
}

impl SkipReason {
    /// Whether it might be carried, but not surely with the pod's own address.
    pub(super) fn is_strange(&self) -> bool {
        match self {
            Self::Misfit(misfit) => matches!(
                misfit,
                Misfit::Strange { .. } | Misfit::OtherEnd { .. } | Misfit::Vlan
            ),
            Self::Crowded { .. } | Self::Exposed { .. } | Self::OneLink => true,
            _ => false,
        }
    }
}

/// How connections by the pod's interface `name` are carried by `carrier`, unless the netdev on the
/// host on which it lies has another id.
pub(super) fn fits(input: SmcInput<'_>, carrier: &Carrier, name: &str) -> Result<Fit, SkipReason> {
    let fit = by_its_gids(input, carrier, name);
    match base(input, name) {
        Some(base) if base.name != carrier.entry.name && fit != Err(SkipReason::NoIpv4) => {
            Err(SkipReason::ParentsId {
                netdev: base.netdev.clone().unwrap_or_default(),
                id: base.name.clone(),
            })
        }
        _ => fit,
    }
}

/// The entry that counts before the pod's own of the interface `name`.
pub(super) fn base<'a>(input: SmcInput<'a>, name: &str) -> Option<&'a PnetEntry> {
    rails::base(input.attachment, name, input.observed, input.seen)
}

/// How its connections are carried by the GIDs of the carrier's port: not at all if any of
/// its addresses would be carried wrongly, or none could be. By SMC-Rv2 if any of them is.
fn by_its_gids(input: SmcInput<'_>, carrier: &Carrier, name: &str) -> Result<Fit, SkipReason> {
    let Some(gids) = input.gids else {
        return Ok(Fit::V2);
    };
    let pod = input.observed.pod.as_ref();
    let link = pod.and_then(|pod| pod.link(name));
    let gids = gids.get(carrier.rail).and_then(Option::as_ref);
    let gids = gids.ok_or_else(|| SkipReason::Unseen(carrier.device.clone()))?;
    let rail = &input.attachment.rails[carrier.rail];
    let view = View {
        gids,
        netdevs: &netdevs(input, rail),
        alone: rail.shared.is_none(),
        has_ueid: input.ueid.is_some() || !input.seen.ueids.is_empty(),
    };
    let mut found = Err(SkipReason::NoIpv4);
    for source in link.into_iter().flat_map(|link| sources(input, link)) {
        match verdict(view, source) {
            Err(misfit @ Misfit::Strange { .. }) => return Err(misfit.into()),
            Err(misfit) if found == Err(SkipReason::NoIpv4) => found = Err(misfit.into()),
            Err(_) => {}
            Ok(fit) if found != Ok(Fit::V2) => found = Ok(fit),
            Ok(_) => {}
        }
    }
    // a rail's own address is on the link that its connections need
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

/// The sources that connections by the pod's netdev `link` can have.
pub(super) fn sources<'a>(input: SmcInput<'a>, link: &'a Link) -> impl Iterator<Item = Source> {
    Source::of(link, is_vlan(input.observed, link))
}

/// Whether a netdev of the pod is a VLAN's, or a child of one (`smc_vlan_by_tcpsk()`,
/// `net/smc/smc_core.c`).
fn is_vlan(observed: &Observed, link: &Link) -> bool {
    let is_one = |link: &Link| link.kind.as_deref() == Some("vlan");
    let parent = parent_on_host(link).and_then(|index| observed.host.link_by_index(index));
    is_one(link) || parent.is_some_and(is_one)
}

/// Another pod with connections that would go by the link groups of this one's, where RDMA devices
/// are shared: a server's are told apart by the peer's GID alone, whichever pod and device they
/// are of (`smcr_lgr_match()`, `net/smc/smc_core.c`). What goes by the device's own GID survives
/// any pod.
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

/// Those of the record's interfaces whose connections would not be carried as things are now.
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
        let carrier = Carrier {
            rail,
            entry: PnetEntry {
                name: carried.pnet_id.clone(),
                netdev: None,
                rdma: Some((carried.rdma_device.clone(), carried.port)),
            },
            device: carried.rdma_device.clone(),
            port: carried.port,
        };
        if let Err(reason) = fits(input, &carrier, &carried.interface) {
            misfits.push((carried.interface.clone(), reason));
        }
    }
    misfits
}

/// The tables of `gids` as they would be if no other pod had addresses. `others` are attachments, of
/// which some may be of the same pod.
pub fn without_other_pods(
    attachment: &Attachment,
    others: &[Attachment],
    gids: &[Option<GidTable>],
) -> Vec<Option<GidTable>> {
    let of = |attachment: &Attachment| -> Vec<IpAddr> {
        let rails = attachment.rails.iter();
        let addresses = rails.flat_map(|rail| &rail.given.addresses);
        addresses.map(|it| it.peer.unwrap_or(it.ip)).collect()
    };
    let is_own = |it: &&Attachment| it.netns_id == attachment.netns_id;
    let own: Vec<IpAddr> = [attachment]
        .into_iter()
        .chain(others.iter().filter(is_own))
        .flat_map(of)
        .collect();
    let theirs = others.iter().filter(|it| !is_own(it)).flat_map(of);
    let theirs: Vec<IpAddr> = theirs.filter(|ip| !own.contains(ip)).collect();
    let mut gids = gids.to_vec();
    for table in gids.iter_mut().flatten() {
        table.gids.retain(|gid| !theirs.contains(&gid.address()));
    }
    gids
}

/// The netdevs that can have GIDs on the RDMA port of `rail`: the pod's own, the host's, and, as
/// far as their records tell, those of other pods.
fn netdevs(input: SmcInput<'_>, rail: &Rail) -> Vec<Netdev> {
    let observed = input.observed;
    let of = |link: &Link, owner, is_on_port| Netdev {
        name: link.name.to_string(),
        addresses: link.addresses.clone(),
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
        other.rails.iter().map(|rail| Netdev {
            name: rail.pod_name.to_string(),
            addresses: rail.given.addresses.clone(),
            vlan: false,
            owner: Owner::Another(other.holder()),
            is_on_port: is_on_device(rail),
        })
    });
    pod.chain(host).chain(others).collect()
}
