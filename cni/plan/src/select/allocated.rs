// SPDX-License-Identifier: Apache-2.0
//! What kubelet allocated.
//!
//! A shared resource stands for all devices that a node has, and pods are to run although one of
//! them cannot be attached: a device that its nature lets no netdev be shared of is left to its
//! character device, and one that is down is left out as long as there is another.

use super::{Chosen, SelectError, bare, by_address, check_holders, host_use::Naming};
use crate::allocation::{self, Allotment, Meaning};
use attachments::Attachment;
use network_conf::Mode;
use rdma_netns::{LinkType, Observed, RdmaMode};
use rdma_resources::Sharing;

/// The netdevs to attach; two of the devices can be one bond.
pub(super) fn choose<'a>(
    mode: Mode,
    meanings: &[Meaning],
    observed: &'a Observed,
    others: &[Attachment],
) -> Result<Vec<Chosen<'a>>, SelectError> {
    let mut chosen: Vec<Chosen<'a>> = vec![];
    let mut down: Vec<Chosen<'a>> = vec![];
    for allotment in allocation::devices(meanings, &observed.devices)? {
        let shares = is_shared(mode, &allotment, observed);
        if shares && let Some((rdma, why)) = by_verbs_alone(&allotment, observed, others)? {
            log::info!("{rdma} is the pod's by its character device alone: {why}");
            continue;
        }
        let found = by_address(mode, &allotment.address, observed, others)?;
        let among = match shares && !found.link.up {
            true => &mut down,
            false => &mut chosen,
        };
        if !found.is_in(among) {
            among.push(Chosen {
                naming: Naming::Kubelet,
                allotment: Some(allotment),
                ..found
            });
        }
    }
    if chosen.is_empty() {
        // why it cannot be attached is told as of any other
        return Ok(down);
    }
    for left_out in down {
        log::warn!(
            "{} is down: the pod goes without it; set it up",
            left_out.link.name
        );
    }
    Ok(chosen)
}

/// Whether the device stays on the host, with its RDMA device, for all pods.
fn is_shared(mode: Mode, allotment: &Allotment, observed: &Observed) -> bool {
    mode != Mode::Move
        && allotment.sharing == Sharing::Shared
        && observed.rdma_mode == Some(RdmaMode::Shared)
}

/// The RDMA device of `allotment`, and why there is no netdev to share: its queue pairs need none.
///
/// # Errors
/// They need one: the port is Ethernet's, and has no GIDs without.
fn by_verbs_alone<'a>(
    allotment: &Allotment,
    observed: &'a Observed,
    others: &[Attachment],
) -> Result<Option<(&'a str, &'static str)>, SelectError> {
    let address = &allotment.address;
    let mut rdma = observed.host.rdma.iter();
    let Some(rdma) = rdma.find(|rdma| rdma.parent.as_ref() == Some(address)) else {
        return Ok(None);
    };
    let netdevs = observed.host.links_of(address, &observed.host);
    let why = match netdevs.first() {
        None if rdma.lacks_netdev() => {
            let pod = observed.pod.as_ref();
            if pod.is_some_and(|pod| !pod.links_of(address, &observed.host).is_empty()) {
                return Ok(None);
            }
            check_holders(address, others)?;
            return Err(bare::no_gids(address, rdma, observed));
        }
        None => "it has no netdev on the host",
        Some(link) if link.link_type == LinkType::Infiniband => {
            "its netdev is InfiniBand's, of which there is no macvlan or ipvlan"
        }
        Some(_) => return Ok(None),
    };
    Ok(Some((&rdma.name, why)))
}
