// SPDX-License-Identifier: Apache-2.0
//! What a network manager has taken away of what was restored.
//!
//! A manager that sees a netdev come back, before it has an address, takes it for new: it removes all addresses and
//! routes, and sets the netdev up by its own profile. If it meets an address of ours in between, it leaves the rest to
//! whoever has set that one (NetworkManager, `recheck_assume_connection()` of `src/core/nm-manager.c`), and what it
//! has removed stays away.

use attachments::Attachment;
use rdma_netns::{Address, Link, Observed, Route};

/// Whether a netdev of `attachment` has lost addresses or routes since `then`, when it was restored, and was given no
/// other address: one that has another is set up by somebody else, who is not interfered with.
pub fn taken_away(attachment: &Attachment, then: &Observed, now: &Observed) -> bool {
    let host_links = attachment
        .rails
        .iter()
        .filter_map(|it| it.host_link.as_ref());
    let mut pairs = host_links.filter_map(|host_link| {
        let then = then.host.link(&host_link.name)?;
        Some((then, now.host.link_by_index(then.index)?))
    });
    pairs.any(|(then, now)| has_lost(then, now) && !has_another(then, now))
}

fn has_lost(then: &Link, now: &Link) -> bool {
    let mut addresses = then.addresses.iter();
    let mut routes = then.lasting_routes();
    addresses.any(|it| !has(now, it)) || routes.any(|it| !leads_by(now, it))
}

/// Whether `link` has `route`, whatever is left of its time.
fn leads_by(link: &Link, route: &Route) -> bool {
    let key = |it: &Route| (it.destination, it.prefix, it.table, it.gateway, it.metric);
    link.routes.iter().any(|it| key(it) == key(route))
}

fn has_another(then: &Link, now: &Link) -> bool {
    let mut addresses = now.addresses.iter();
    addresses.any(|it| !it.is_link_local() && !has(then, it))
}

fn has(link: &Link, address: &Address) -> bool {
    let mut addresses = link.addresses.iter();
    addresses.any(|it| (it.ip, it.prefix) == (address.ip, address.prefix))
}
