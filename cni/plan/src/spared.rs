// SPDX-License-Identifier: Apache-2.0
//! Plans how the host's other netdevs keep their default routers.
//!
//! When a program switches `forwarding` of one netdev on, even if it is on already, the kernel drops every advertised
//! default router of the namespace. The kernel keeps the default routers of netdevs whose `accept_ra` is 2
//! (`addrconf_fixup_forwarding()`, `net/ipv6/addrconf.c`; `__rt6_purge_dflt_routers()`, `net/ipv6/route.c`). So the
//! plan sets `accept_ra` to 2 before the change, and restores it afterwards. On a netdev without forwarding, 2 has the
//! same effect as 1 (`ipv6_accept_ra()`, `include/net/ipv6.h`).

use super::RailPlan;
use attachments::Spared;
use rdma_netns::{LinkChange, NetnsSide, Observed, Op, link::PROTOCOL_RA};

const ACCEPT_RA: &str = "ipv6/accept_ra";
const EVEN_IF_FORWARDING: i32 = 2;

/// Returns true if the kernel drops the host's default routers when it executes `op`.
pub fn drops_routers(op: &Op) -> bool {
    matches!(op, Op::Link { at: NetnsSide::Host, change: LinkChange::Sysctl { key, value }, .. } if key == "ipv6/forwarding" && *value != 0)
}

/// Returns the host's netdevs that would lose default routers by `plans`. Omits netdevs that accept no router
/// advertisements: a network manager set their default routers, and the kernel drops only routers from advertisements.
pub fn to_spare(plans: &[RailPlan], observed: &Observed) -> Vec<Spared> {
    if !plans.iter().flatten().flatten().any(drops_routers) {
        return vec![];
    }
    let spared = observed.host.links.iter().filter_map(|link| {
        let accept_ra = *link.sysctls.get(ACCEPT_RA)?;
        let has_router = || {
            let mut routes = link.routes.iter();
            routes.any(|it| it.protocol == PROTOCOL_RA && it.prefix == 0)
        };
        let is_endangered = ![0, EVEN_IF_FORWARDING].contains(&accept_ra) && has_router();
        is_endangered.then(|| Spared {
            name: link.name.clone(),
            index: link.index,
            accept_ra,
        })
    });
    spared.collect()
}

/// Plans the temporary changes that keep the default routers of `spared`.
pub fn spare(spared: &[Spared]) -> impl Iterator<Item = Op> {
    spared.iter().map(|it| set(it, EVEN_IF_FORWARDING))
}

/// Plans the changes that restore the recorded `accept_ra` of `spared`.
pub fn spare_no_more(spared: &[Spared]) -> impl Iterator<Item = Op> {
    spared.iter().map(|it| set(it, it.accept_ra))
}

/// Returns the netdevs of `spared` that still have the temporary value, with their present names.
pub fn still_spared(spared: &[Spared], observed: &Observed) -> Vec<Spared> {
    let present = |it: &Spared| {
        let link = observed.host.link_by_index(it.index)?;
        let is_spared = link.sysctls.get(ACCEPT_RA) == Some(&EVEN_IF_FORWARDING);
        is_spared.then(|| Spared {
            name: link.name.clone(),
            ..it.clone()
        })
    };
    spared.iter().filter_map(present).collect()
}

/// Replaces the temporary values of `spared` in `observed` by the recorded values.
pub fn without_spared(spared: &[Spared], observed: &mut Observed) {
    for it in still_spared(spared, observed) {
        let mut links = observed.host.links.iter_mut();
        let link = links.find(|link| link.index == it.index);
        if let Some(value) = link.and_then(|link| link.sysctls.get_mut(ACCEPT_RA)) {
            *value = it.accept_ra;
        }
    }
}

fn set(Spared { name, .. }: &Spared, value: i32) -> Op {
    let key = ACCEPT_RA.to_owned();
    Op::link(NetnsSide::Host, name, LinkChange::Sysctl { key, value })
}
