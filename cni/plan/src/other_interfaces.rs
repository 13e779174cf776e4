// SPDX-License-Identifier: Apache-2.0
//! Interfaces of the pod that other plugins made. A reply from an interface's address must leave through this
//! interface. In the main table, a rail's route to its network attracts all replies to that network, because the route
//! is more specific than a default route. Programs that read only the main table (UCX) need this route. So rules send
//! only the affected replies to a table of the interface.

use super::{draft::LinkPlanner, routing};
use attachments::{Attachment, OtherInterface, Rail};
use ipnetwork::IpNetwork;
use rdma_netns::{
    Address, Link, LinkChange, Namespace, NetnsSide, Observed, Op, Route, Rule,
    link::{MAIN_TABLE, PROTOCOL_RA, PROTOCOL_STATIC},
};
use std::{cmp::Reverse, net::IpAddr};

/// Priority of the main table's rule (`fib_default_rules_init()`, `net/ipv4/fib_rules.c`). The kernel evaluates a rule
/// with a higher number only for packets for which the main table has no route.
const MAIN_PRIORITY: u32 = 32766;

/// Priority of the rules for other interfaces. They directly precede the main table's rule, because they correct its
/// result. They follow the rules of other programs, such as rules by firewall mark.
const PRIORITY: u32 = MAIN_PRIORITY - 1;

/// Maximum number of a pod's interfaces that get rules, and maximum number of addresses of each interface.
const MOST: usize = 64;

/// Maximum number of routes within a rail's network that the plan copies from the pod. If the pod has more routes
/// within a network, this network gets no rules.
const MOST_ROUTES: usize = 256;

/// Returns the pod's interfaces, at most [`MOST`], that may need rules and routes: they are up, have lasting routes in
/// the main table, and are no rails. [`divert`] plans their rules and routes later, from the rails' addresses and
/// routes.
pub(super) fn of_pod(attachment: &Attachment, observed: &Observed) -> Vec<OtherInterface> {
    let is_rail = |link: &&Link| {
        let pod = observed.pod.as_ref();
        pod.is_some_and(|pod| !routing::rules_of(link, pod).is_empty())
    };
    let links = routing::other_links(attachment, observed);
    let links = links.filter(|link| link.up && !is_rail(link) && ways(link).next().is_some());
    let interface = |link: &Link| OtherInterface {
        name: link.name.clone(),
        index: link.index,
        table: 0,
        rules: vec![],
        routes: vec![],
    };
    links.take(MOST).map(interface).collect()
}

/// Plans rules and routes of the pod's other interfaces, from the addresses and routes of the rails. For each network
/// to which a rail has a route in the main table, and for each interface with a less specific route to this network,
/// the plan adds
///
/// - a rule for each lasting address of the interface;
/// - the most specific of these routes;
/// - copies of the other interfaces' routes within the network, because they are more specific than the rail's route.
pub fn divert(attachment: &mut Attachment, observed: &Observed) {
    let Some(pod) = &observed.pod else {
        return;
    };
    let networks = networks(&attachment.rails);
    let others = &mut attachment.other_interfaces;
    let links: Vec<Option<&Link>> = others.iter().map(|it| it.link(pod)).collect();
    for other in others.iter_mut() {
        (other.rules, other.routes) = (vec![], vec![]);
    }
    for network in networks {
        let within: Vec<(usize, &Route)> = (links.iter().enumerate())
            .flat_map(|(place, link)| {
                link.iter()
                    .flat_map(|it| ways(it))
                    .map(move |it| (place, it))
            })
            .filter(|(_, route)| {
                route.prefix >= network.prefix() && network.contains(route.destination)
            })
            .take(MOST_ROUTES + 1)
            .collect();
        if within.len() > MOST_ROUTES {
            continue;
        }
        for (place, link) in links.iter().enumerate() {
            let Some(link) = link else { continue };
            let table = others[place].table;
            let rules = rules(link, network, table, pod);
            let covers = |it: &&Route| it.prefix < network.prefix() && it.leads_to(network.ip());
            let rank = |it: &Route| (it.prefix, Reverse(routing::metric(it)));
            let best = ways(link).filter(covers).map(rank).max();
            if rules.is_empty() || best.is_none() {
                continue;
            }
            others[place].rules.extend(rules);
            let covering = ways(link)
                .filter(covers)
                .filter(|it| Some(rank(it)) == best);
            let covering = covering.map(|it| (place, it));
            for (place, route) in covering.chain(within.iter().copied()) {
                let copy = Route {
                    table,
                    protocol: PROTOCOL_STATIC,
                    // no source: the rule selects by source address
                    source: None,
                    ..route.clone()
                };
                let routes = &mut others[place].routes;
                if !routes.contains(&copy) {
                    routes.push(copy);
                }
            }
        }
    }
}

/// Returns the networks to which rails have routes in the main table. Omits link-local networks.
fn networks(rails: &[Rail]) -> Vec<IpNetwork> {
    let mut networks = vec![];
    for given in rails.iter().map(|rail| &rail.assigned) {
        let peers = given.addresses.iter();
        let peers = peers.filter_map(|it| IpNetwork::new(it.peer?, it.prefix).ok());
        let connected = given.addresses.iter().filter_map(routing::connected);
        let routes = given.routes.iter().filter(|it| it.table == MAIN_TABLE);
        let routes = routes.cloned().chain(connected);
        let routes = routes.filter_map(|it| IpNetwork::new(it.destination, it.prefix).ok());
        for network in routes.chain(peers) {
            let is_known = networks.iter().any(|it: &IpNetwork| {
                (it.network(), it.prefix()) == (network.network(), network.prefix())
            });
            if !is_known && !is_link_local(network.ip()) {
                networks.push(network);
            }
        }
    }
    networks
}

/// Returns a rule for each lasting address of `link` in the family of `network`. Omits an address that a rule of
/// another program selects.
fn rules(link: &Link, network: IpNetwork, table: u32, pod: &Namespace) -> Vec<Rule> {
    let is_free = |ip: IpAddr| {
        let mut rules = pod.rules.iter();
        !rules.any(|rule| rule.priority < MAIN_PRIORITY && rule.selects(ip))
    };
    let addresses = link.addresses.iter().filter(|it| is_lasting(it));
    let addresses = addresses.map(|it| it.ip);
    let addresses = addresses.filter(|ip| ip.is_ipv4() == network.is_ipv4() && is_free(*ip));
    let rule = |ip: IpAddr| Rule {
        to: Some((network.network(), network.prefix())),
        priority: PRIORITY,
        ..routing::source_rule(ip, table)
    };
    addresses.take(MOST).map(rule).collect()
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Returns true if the pod has `address` permanently, and can send replies to other networks from this address.
fn is_lasting(address: &Address) -> bool {
    let is_local = is_link_local(address.ip) || address.ip.is_loopback();
    !(is_local || address.temporary || address.dad_failed)
}

/// Returns the routes of `link` in the main table. Omits routes with a lifetime or a TOS, routes from router
/// advertisements, and link-local routes without a gateway.
fn ways(link: &Link) -> impl Iterator<Item = &Route> {
    let lasts = |it: &&Route| {
        it.table == MAIN_TABLE
            && it.expires.is_none()
            && it.protocol != PROTOCOL_RA
            && it.tos == 0
            && (it.gateway.is_some() || !is_link_local(it.destination))
    };
    link.routes.iter().filter(lasts)
}

/// Returns the operations that are still necessary for the pod's other interfaces. Omits interfaces that are down or no
/// longer exist, and rules for addresses that an interface has lost.
pub fn attach_other_interfaces(attachment: &Attachment, observed: &Observed) -> Vec<Op> {
    let mut ops = vec![];
    let Some(pod) = &observed.pod else {
        return ops;
    };
    let at = NetnsSide::Pod;
    let others = attachment.other_interfaces.iter();
    let present = others.filter_map(|it| Some((it, it.link(pod).filter(|link| link.up)?)));
    let needed = present.clone().flat_map(|(other, link)| {
        let has = |ip: IpAddr| link.addresses.iter().any(|it| it.ip == ip);
        let rules = other.rules.iter();
        rules.filter(move |rule| has(rule.from))
    });
    let needed: Vec<&Rule> = needed.collect();
    let missing = needed.iter().filter(|rule| !pod.rules.contains(rule));
    ops.extend(missing.map(|rule| Op::AddRule {
        at,
        rule: (*rule).clone(),
    }));
    for (other, link) in present {
        let mut planner = LinkPlanner::new(at, link, &mut ops);
        let is_needed = |route: &&Route| {
            let mut rules = needed.iter();
            rules.any(|it| {
                it.table == route.table && it.from.is_ipv4() == route.destination.is_ipv4()
            })
        };
        for route in other.routes.iter().filter(is_needed) {
            planner.route(route);
        }
    }
    ops
}

/// Plans the removal of the present rules of the pod's other interfaces, and of the recorded routes in the tables of
/// these rules. The pod's routes are not observed, so a recorded route may no longer exist. The execution ignores a
/// missing route.
pub(super) fn detach(attachment: &Attachment, observed: &Observed) -> Vec<Op> {
    let Some(pod) = &observed.pod else {
        return vec![];
    };
    let at = NetnsSide::Pod;
    let others = &attachment.other_interfaces;
    let rules = others.iter().flat_map(|it| &it.rules);
    let rules: Vec<&Rule> = rules.filter(|it| pod.rules.contains(it)).collect();
    let present = others.iter().filter_map(|it| Some((it, it.link(pod)?)));
    let routes = present.flat_map(|(other, link)| {
        let routes = other.routes.iter().rev();
        routes.map(|route| (&link.name, route.clone()))
    });
    let has_rule = |route: &Route| rules.iter().any(|rule| rule.table == route.table);
    let routes = routes.filter(|(_, route)| has_rule(route));
    let mut ops: Vec<Op> = routes
        .map(|(link, route)| Op::link(at, link, LinkChange::RemoveRoute(route)))
        .collect();
    ops.extend(rules.iter().map(|rule| Op::RemoveRule {
        at,
        rule: (*rule).clone(),
    }));
    ops
}
