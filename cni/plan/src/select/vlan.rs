// SPDX-License-Identifier: Apache-2.0
//! Selection of the host's VLANs. A VLAN has the RDMA device of its NIC or bond ([`Namespace::below_vlan`]). If the
//! lower netdev has RDMA, a selector that matches both the VLAN and its lower netdev selects only the lower netdev. A
//! VLAN never moves together with the RDMA device of its NIC.

use super::{candidate, rdma_of};
use network_conf::{Conf, Mode, selector::Selector};
#[cfg(doc)]
use rdma_netns::Namespace;
use rdma_netns::{Link, Observed};

/// Returns true if `selector`, which matches the VLAN `link`, also matches the VLAN's lower netdev, and the lower
/// netdev has RDMA. The selector then means the lower netdev: `bond*` means bonds, and `bond*.100` means VLANs.
pub(super) fn means_lower(selector: &Selector, observed: &Observed, link: &Link) -> bool {
    let Some(lower) = observed.host.below_vlan(link) else {
        return false;
    };
    let rdma = rdma_of(&observed.host, lower);
    rdma.is_some() && selector.matches(candidate(observed, lower, rdma))
}

/// Returns true if `selector` matches a VLAN, but not its lower netdev, and only an observation of ports shows the
/// lower netdev's RDMA device.
pub(super) fn has_unknown_rdma(selector: &Selector, observed: &Observed) -> bool {
    let host = &observed.host;
    let fits = |link: &Link| selector.matches(candidate(observed, link, rdma_of(host, link)));
    host.links.iter().any(|link| {
        let lower = host.below_vlan(link);
        lower.is_some_and(|lower| rdma_of(host, lower).is_none() && fits(link) && !fits(lower))
    })
}

/// Returns true if `link` is a VLAN that moves into the pod without an RDMA device.
pub(super) fn moves_alone(conf: &Conf, link: &Link) -> bool {
    link.is_vlan() && conf.mode == Mode::Move && !conf.require_rdma
}
