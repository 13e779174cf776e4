// SPDX-License-Identifier: Apache-2.0
//! The pod's interfaces that other plugins made: a table for each, so that a reply from one of its addresses leaves by
//! it. In the main table a rail's route attracts replies to the rail's network, from whatever address: it is more
//! specific than a default route, and programs that look only there (UCX) need it.

use super::{draft::LinkPlanner, routing};
use attachments::{Attachment, DesiredLink, OtherInterface};
use rdma_netns::{
    Address, Link, NetnsSide, Observed, Op, Route, Rule,
    link::{MAIN_TABLE, PROTOCOL_STATIC},
};
use std::net::IpAddr;

/// The priority of the main table's rule (`fib_default_rules_init()`, `net/ipv4/fib_rules.c`): a rule behind it decides
/// only what that table does not.
const MAIN_PRIORITY: u32 = 32766;

/// An interface that is to have a table.
pub(super) struct Candidate<'a> {
    link: &'a Link,
    addresses: Vec<IpAddr>,
    /// The table that it has by another attachment of the pod.
    pub(super) table: Option<u32>,
}

/// The interfaces of the pod that are no rails of `attachment`, with the addresses that no rule of somebody else selects.
/// A rule of an attachment in `same_pod` for another plugin's interface is shared with it.
pub(super) fn find<'a>(
    attachment: &'a Attachment,
    observed: &'a Observed,
    same_pod: &[&Attachment],
) -> Vec<Candidate<'a>> {
    let shares = same_pod.iter().filter(|it| attachment.shares_pod_with(it));
    let shared: Vec<&OtherInterface> = shares.flat_map(|it| &it.other_interfaces).collect();
    let is_shared = |rule: &Rule| shared.iter().any(|it| it.rules.contains(rule));
    let rules = observed.pod.iter().flat_map(|pod| &pod.rules);
    let foreign: Vec<&Rule> = rules
        .filter(|rule| rule.priority < MAIN_PRIORITY && !is_shared(rule))
        .collect();
    let links = routing::other_links(attachment, observed).filter(|link| link.up);
    let candidates = links.map(|link| {
        let has_way =
            |ip: IpAddr| main_routes(link).any(|it| it.destination.is_ipv4() == ip.is_ipv4());
        let is_free = |ip: IpAddr| !foreign.iter().any(|rule| rule.selects(ip));
        let addresses = link.addresses.iter().filter(|it| is_lasting(it));
        let addresses = addresses
            .map(|it| it.ip)
            .filter(|ip| has_way(*ip) && is_free(*ip));
        let known = shared.iter().find(|it| it.name == link.name);
        Candidate {
            link,
            addresses: addresses.collect(),
            table: known.and_then(|it| Some(it.rules.first()?.table)),
        }
    });
    candidates.filter(|it| !it.addresses.is_empty()).collect()
}

/// Whether replies are sent from `address` to other networks, for as long as the pod lives.
fn is_lasting(address: &Address) -> bool {
    let is_local = match address.ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(is_local || address.ip.is_loopback() || address.temporary || address.dad_failed)
}

/// The routes of `link` in the main table, those on the link first.
fn main_routes(link: &Link) -> impl Iterator<Item = &Route> {
    let main = || link.routes.iter().filter(|it| it.table == MAIN_TABLE);
    let on_link = main().filter(|it| it.gateway.is_none());
    on_link.chain(main().filter(|it| it.gateway.is_some()))
}

impl Candidate<'_> {
    /// What is recorded of it, with `table`.
    pub(super) fn with_table(self, table: u32) -> OtherInterface {
        let is_used = |it: &&Route| {
            let mut addresses = self.addresses.iter();
            addresses.any(|ip| ip.is_ipv4() == it.destination.is_ipv4())
        };
        let mut routes: Vec<Route> = vec![];
        for route in main_routes(self.link).filter(is_used) {
            let copy = Route {
                table,
                protocol: PROTOCOL_STATIC,
                // the rule says from which address
                source: None,
                expires: None,
                ..route.clone()
            };
            if !routes.contains(&copy) {
                routes.push(copy);
            }
        }
        let rules = self.addresses.iter();
        OtherInterface {
            name: self.link.name.clone(),
            rules: rules.map(|ip| routing::source_rule(*ip, table)).collect(),
            routes,
        }
    }
}

/// What is still to be done for the pod's other interfaces beside rails that are `desired` to be so: in the families
/// that the rails have. What is down, gone, or has lost an address needs no way.
pub fn attach_other_interfaces<'a>(
    attachment: &Attachment,
    observed: &Observed,
    desired: impl Iterator<Item = &'a DesiredLink> + Clone,
) -> Vec<Op> {
    let advertised = attachment.accept_ra;
    let has_family = |is_ipv4: bool| {
        desired.clone().any(|rail| {
            let addresses = rail.addresses.iter().map(|it| it.ip);
            let destinations = rail.routes.iter().map(|it| it.destination);
            addresses
                .chain(destinations)
                .any(|ip| ip.is_ipv4() == is_ipv4)
        })
    };
    let (ipv4, ipv6) = (has_family(true), has_family(false) || advertised);
    let is_used = |ip: IpAddr| if ip.is_ipv4() { ipv4 } else { ipv6 };
    let mut ops = vec![];
    let Some(pod) = &observed.pod else {
        return ops;
    };
    for other in &attachment.other_interfaces {
        let Some(link) = pod.link(&other.name).filter(|link| link.up) else {
            continue;
        };
        let is_missing = |rule: &&Rule| {
            let mut addresses = link.addresses.iter();
            is_used(rule.from)
                && addresses.any(|it| it.ip == rule.from)
                && !pod.rules.contains(rule)
        };
        let rules = other.rules.iter().filter(is_missing).cloned();
        ops.extend(rules.map(|rule| Op::AddRule {
            at: NetnsSide::Pod,
            rule,
        }));
        let mut planner = LinkPlanner::new(NetnsSide::Pod, link, &mut ops);
        for route in other.routes.iter().filter(|it| is_used(it.destination)) {
            planner.route(route);
        }
    }
    ops
}

/// Removes the rules and routes of the pod's other interfaces. The pod's routes are not observed: one that is gone
/// already is no error.
pub(super) fn detach(attachment: &Attachment, observed: &Observed) -> Vec<Op> {
    let mut ops = vec![];
    let Some(pod) = &observed.pod else {
        return ops;
    };
    let at = NetnsSide::Pod;
    for other in &attachment.other_interfaces {
        let rules: Vec<&Rule> = other
            .rules
            .iter()
            .filter(|it| pod.rules.contains(it))
            .collect();
        if rules.is_empty() {
            continue;
        }
        let link = pod.link(&other.name).map(|link| link.name.clone());
        ops.extend(link.iter().flat_map(|link| {
            other.routes.iter().rev().map(|route| Op::RemoveRoute {
                at,
                link: link.clone(),
                route: route.clone(),
            })
        }));
        ops.extend(rules.into_iter().map(|rule| Op::RemoveRule {
            at,
            rule: rule.clone(),
        }));
    }
    ops
}
