// SPDX-License-Identifier: Apache-2.0
//! VLANs of the host, whose RDMA device is that of the NIC or bond that they lie on
//! ([`Namespace::below_vlan`]): which selectors mean one, and that none is moved with the RDMA device of its NIC.

use super::{candidate, rdma_of};
use network_conf::{Conf, Mode, selector::Selector};
#[cfg(doc)]
use rdma_netns::Namespace;
use rdma_netns::{Link, Observed};

/// Whether `selector`, which fits `link`, means not that VLAN but the netdev that it lies on: that fits as well
/// and has RDMA. So `bond*` means bonds, and `bond*.100` means VLANs.
pub(super) fn stands_behind_its_lower(
    selector: &Selector,
    observed: &Observed,
    link: &Link,
) -> bool {
    let Some(lower) = observed.host.below_vlan(link) else {
        return false;
    };
    let rdma = rdma_of(&observed.host, lower);
    rdma.is_some() && selector.matches(candidate(observed, lower, rdma))
}

/// Whether `selector` fits a VLAN alone of whose RDMA device nothing is known: it can be one that only a port tells.
pub(super) fn is_untold(selector: &Selector, observed: &Observed) -> bool {
    let host = &observed.host;
    let fits = |link: &Link| selector.matches(candidate(observed, link, rdma_of(host, link)));
    host.links.iter().any(|link| {
        let lower = host.below_vlan(link);
        lower.is_some_and(|lower| rdma_of(host, lower).is_none() && fits(link) && !fits(lower))
    })
}

/// Whether `link` is a VLAN that goes into the pod as a netdev and nothing more.
pub(super) fn moves_alone(conf: &Conf, link: &Link) -> bool {
    link.is_vlan() && conf.mode == Mode::Move && !conf.require_rdma
}
