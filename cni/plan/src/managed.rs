// SPDX-License-Identifier: Apache-2.0
//! Attributes that a network manager removed after `rdma-cni` restored them.
//!
//! When a netdev returns without an address, a manager treats it as new: the manager removes all addresses and routes,
//! and sets up the netdev by its own profile. If `rdma-cni` restores an address meanwhile, the manager finds this
//! address and stops managing the netdev (NetworkManager, `recheck_assume_connection()` of `src/core/nm-manager.c`).
//! The manager does not restore the addresses that it removed before.

use attachments::{Attachment, Stage};
use rdma_netns::{Address, Link, Observed, Route};

/// Returns true if a netdev of these `rails` has an address that only DEL can restore after a network manager removed
/// it. Ignores automatic addresses, because the kernel makes them again. Ignores a netdev with an address of a DHCP
/// client, because the client requests a new lease.
pub fn has_to_outlast(attachment: &Attachment, rails: &[usize]) -> bool {
    let mut host_links = host_links(attachment, rails);
    host_links.any(|link| set(link).next().is_some() && !is_leased(link))
}

/// Returns true if a network manager has removed addresses or routes of these netdevs since `then`, the observation
/// just after the restore. Ignores a netdev with a DHCP client's address, and a netdev with a new address, which its
/// manager has set up. A route that now has another metric does not count as removed.
pub fn taken_away(
    attachment: &Attachment,
    rails: &[usize],
    then: &Observed,
    now: &Observed,
) -> bool {
    let mut pairs = host_links(attachment, rails).filter_map(|host_link| {
        let then = then.host.link(&host_link.name)?;
        Some((then, now.host.link_by_index(then.index)?))
    });
    pairs.any(|(then, now)| !is_leased(then) && has_lost(then, now) && !has_another(then, now))
}

fn host_links<'a>(
    attachment: &'a Attachment,
    rails: &'a [usize],
) -> impl Iterator<Item = &'a Link> {
    let rails = rails.iter().filter_map(|it| attachment.rails.get(*it));
    let ours = rails.filter(|rail| rail.stage != Stage::Returned);
    ours.filter_map(|rail| rail.host_link.as_ref())
}

/// Returns the addresses that a program set. Omits addresses that the kernel made.
fn set(link: &Link) -> impl Iterator<Item = &Address> {
    link.addresses.iter().filter(|it| !it.automatic)
}

fn is_leased(link: &Link) -> bool {
    set(link).any(|it| it.lifetime.is_some())
}

fn has_lost(then: &Link, now: &Link) -> bool {
    let leads_by = |route: &Route| {
        let mut routes = now.routes.iter();
        routes.any(|it| it.same_destination(route) && it.gateway == route.gateway)
    };
    set(then).any(|it| now.address(it).is_none()) || then.lasting_routes().any(|it| !leads_by(it))
}

fn has_another(then: &Link, now: &Link) -> bool {
    let mut addresses = set(now).filter(|it| !it.is_link_local());
    addresses.any(|it| then.address(it).is_none())
}
