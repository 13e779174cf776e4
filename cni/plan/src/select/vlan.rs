// SPDX-License-Identifier: Apache-2.0
//! VLANs of the host. Their RDMA device is that of the NIC or bond that they lie on ([`Namespace::below_vlan`]).
//! Selectors match them in certain cases only, and none is moved with the RDMA device of its NIC.

use super::{candidate, rdma_of};
use network_conf::{Conf, Mode, selector::Selector};
#[cfg(doc)]
use rdma_netns::Namespace;
use rdma_netns::{Link, Observed};

/// Returns true if `selector`, which matches the VLAN `link`, means the netdev below it: that matches as well and has
/// RDMA. So `bond*` means bonds, and `bond*.100` means VLANs.
pub(super) fn means_lower(selector: &Selector, observed: &Observed, link: &Link) -> bool {
    let Some(lower) = observed.host.below_vlan(link) else {
        return false;
    };
    let rdma = rdma_of(&observed.host, lower);
    rdma.is_some() && selector.matches(candidate(observed, lower, rdma))
}

/// Returns true if `selector` matches a VLAN, and not the netdev below it, whose RDMA device is unknown: only a port
/// may tell it.
pub(super) fn has_unknown_rdma(selector: &Selector, observed: &Observed) -> bool {
    let host = &observed.host;
    let fits = |link: &Link| selector.matches(candidate(observed, link, rdma_of(host, link)));
    host.links.iter().any(|link| {
        let lower = host.below_vlan(link);
        lower.is_some_and(|lower| rdma_of(host, lower).is_none() && fits(link) && !fits(lower))
    })
}

/// Returns true if `link` is a VLAN that is moved into the pod as a netdev only.
pub(super) fn moves_alone(conf: &Conf, link: &Link) -> bool {
    link.is_vlan() && conf.mode == Mode::Move && !conf.require_rdma
}
