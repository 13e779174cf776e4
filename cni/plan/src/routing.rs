// SPDX-License-Identifier: Apache-2.0
//! Chooses the pod's routes and rules. Rails' routes get higher metrics than the pod's own routes. The rail's table, which
//! `tables` chooses, has copies of the rail's routes, so a reply leaves through the interface that has the reply's source
//! address.

use attachments::{Attachment, DesiredLink};
use ipnetwork::IpNetwork;
use rdma_netns::{
    Address, Link, Namespace, Observed, Route, Rule,
    link::{IFA_F_NOPREFIXROUTE, MAIN_TABLE, SCOPE_LINK},
};
use std::net::IpAddr;

/// Priority of the rails' rules. The kernel evaluates these rules before the main table's rule (32766), and after rules
/// of other programs with smaller numbers.
const RULE_PRIORITY: u32 = 1000;

/// Returns `desired` with the metrics, tables and rules of the setting `routing`.
///
/// A rail's route gets a higher metric than other routes to the same destination, for two reasons: the pod continues to
/// use its own default route, and the kernel does not merge both routes into one with several next hops.
pub fn routed(
    attachment: &Attachment,
    observed: &Observed,
    mut desired: Vec<DesiredLink>,
) -> Vec<DesiredLink> {
    let mut present = others(attachment, observed);
    for (index, rail) in desired.iter_mut().enumerate() {
        let metric = attachment.routing.metric;
        connect(rail, &present, metric);
        for route in &mut rail.routes {
            // routes from IPAM have no metric
            if attachment.ipam.is_some() && route.metric.is_none() && metric != 0 {
                route.metric = Some(metric);
            }
            // `observe` reports no metric for a route with the default metric
            route.metric = route.metric.filter(|it| *it != route.default_metric());
        }
        raise_metrics(&mut rail.routes, &present, metric);
        present.extend(rail.addresses.iter().filter_map(connected));
        present.extend(rail.routes.iter().cloned());
        if let Some(table) = attachment.table(index) {
            give_table(rail, table);
        }
    }
    desired
}

/// Returns the routes in the pod that do not belong to the attachment's rails.
fn others(attachment: &Attachment, observed: &Observed) -> Vec<Route> {
    let others = other_links(attachment, observed);
    others.flat_map(|link| link.routes.clone()).collect()
}

/// Returns the netdevs in the pod that are not rails of the attachment.
pub(super) fn other_links<'a>(
    attachment: &'a Attachment,
    observed: &'a Observed,
) -> impl Iterator<Item = &'a Link> {
    let is_rail = |link: &Link| {
        let rails = attachment.rails.iter();
        rails
            .filter(|rail| rail.is_ours())
            .any(|rail| rail.pod_name == link.name)
    };
    let links = observed.pod.iter().flat_map(|pod| &pod.links);
    links.filter(move |link| !is_rail(link))
}

/// Sets a metric on the routes that the kernel makes for the rail's addresses. Removes desired routes that would
/// duplicate the kernel's routes.
fn connect(rail: &mut DesiredLink, present: &[Route], metric: u32) {
    for address in &mut rail.addresses {
        let Some(route) = connected(address) else {
            continue;
        };
        let metric = highest(&route, present).map_or(metric, |it| metric.max(it.saturating_add(1)));
        address.metric = Some(metric).filter(|metric| *metric != 0);
    }
    let connected: Vec<Route> = rail.addresses.iter().filter_map(connected).collect();
    let gateways = &rail.gateways;
    rail.routes.retain(|route| {
        // a route without `gw` in IPAM's result has got the `gateway` of an address: a route by such a gateway counts
        // as direct
        let is_direct = route.gateway.is_none_or(|it| gateways.contains(&it));
        let is_double =
            |it: &Route| is_direct && route.table == MAIN_TABLE && it.same_destination(route);
        !connected.iter().any(is_double)
    });
}

/// Returns the prefix route that the kernel makes for `address`. Returns `None` if the kernel makes none, for a
/// link-local address, and for an address with a peer.
pub fn connected(address: &Address) -> Option<Route> {
    let host = if address.ip.is_ipv4() { 32 } else { 128 };
    let has_route = address.flags & IFA_F_NOPREFIXROUTE == 0
        && address.prefix < host
        && address.peer.is_none()
        && !address.is_link_local();
    let network = IpNetwork::new(address.ip, address.prefix).ok()?.network();
    has_route.then(|| Route {
        metric: address.metric,
        ..Route::new(network, address.prefix)
    })
}

/// Raises the metrics of `routes` to the destinations of `present` routes: above the metrics of these routes, and to at
/// least `behind`. All routes to a destination are raised by the same amount, to keep their order and intended
/// multipath routes.
fn raise_metrics(routes: &mut [Route], present: &[Route], behind: u32) {
    let before = routes.to_vec();
    for route in routes {
        let Some(highest) = highest(route, present) else {
            continue;
        };
        let same = before.iter().filter(|it| it.same_destination(route));
        let lowest = same.map(metric).min().unwrap_or_default();
        let needed = highest.saturating_add(1).max(behind);
        let metric = metric(route).saturating_add(needed.saturating_sub(lowest));
        route.metric = Some(metric).filter(|metric| *metric != route.default_metric());
    }
}

/// Returns the highest metric of `present` routes to the destination of `route`.
fn highest(route: &Route, present: &[Route]) -> Option<u32> {
    let same = present.iter().filter(|it| it.same_destination(route));
    same.map(metric).max()
}

/// Returns the metric that the kernel uses for the route.
pub(super) fn metric(route: &Route) -> u32 {
    route.metric.unwrap_or(route.default_metric())
}

/// Fills `table`, the rail's own table, with copies of the rail's routes in the main table, and with a default route
/// through the rail's gateway if the rail has no default route. Adds a rule for each address of the rail, except
/// link-local addresses. The main table keeps the rail's routes, for programs that read only the main table.
fn give_table(rail: &mut DesiredLink, table: u32) {
    // keeps the routes that the NIC had in the same table on the host
    let kept: Vec<Route> = rail
        .routes
        .iter()
        .filter(|it| it.table == table)
        .cloned()
        .collect();
    let mut routes: Vec<Route> = vec![];
    let mut push = |route: Route| {
        let is_there = |it: &Route| {
            // the kernel merges routes through several gateways into one route with several next hops
            let same_way = it.gateway.is_none() || it.gateway == route.gateway;
            it.same_destination(&route) && it.metric == route.metric && same_way
        };
        if !routes.iter().any(is_there) && !kept.iter().any(|it| it.same_destination(&route)) {
            routes.push(route);
        }
    };
    for address in &rail.addresses {
        let Some(connected) = connected(address) else {
            continue;
        };
        let is_ipv4 = address.ip.is_ipv4();
        push(Route {
            table,
            metric: None,
            scope: if is_ipv4 { SCOPE_LINK } else { 0 },
            source: Some(address.ip).filter(|_| is_ipv4),
            ..connected
        });
    }
    for route in rail.routes.iter().filter(|it| it.table == MAIN_TABLE) {
        let route = route.clone();
        push(Route { table, ..route });
    }
    let mut defaults: Vec<bool> = rail
        .routes
        .iter()
        .filter(|it| it.prefix == 0 && [MAIN_TABLE, table].contains(&it.table))
        .map(|it| it.destination.is_ipv4())
        .collect();
    for gateway in &rail.gateways {
        let nowhere: IpAddr = match gateway {
            IpAddr::V4(_) => [0; 4].into(),
            IpAddr::V6(_) => [0; 16].into(),
        };
        let on_link = |it: &Address| {
            IpNetwork::new(it.ip, it.prefix).is_ok_and(|network| network.contains(*gateway))
        };
        let link_local = matches!(gateway, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let is_reached = link_local || rail.addresses.iter().any(on_link);
        if is_reached && !defaults.contains(&gateway.is_ipv4()) {
            defaults.push(gateway.is_ipv4());
            push(Route {
                table,
                gateway: Some(*gateway),
                ..Route::new(nowhere, 0)
            });
        }
    }
    let (by_gateway, on_link): (Vec<Route>, Vec<Route>) =
        routes.into_iter().partition(|it| it.gateway.is_some());
    rail.routes.extend(on_link);
    rail.routes.extend(by_gateway);
    let lasting = rail.addresses.iter().filter(|it| !it.is_link_local());
    rail.rules = lasting
        .map(|address| source_rule(address.ip, table))
        .collect();
}

/// Returns the rules of `pod` that send packets from the addresses of `link` to a table, as the rules of a rail do.
pub fn rules_of(link: &Link, pod: &Namespace) -> Vec<Rule> {
    let is_its = |rule: &&Rule| {
        let mut addresses = link.addresses.iter();
        addresses.any(|it| **rule == source_rule(it.ip, rule.table))
    };
    pod.rules.iter().filter(is_its).cloned().collect()
}

/// Returns the rule that sends packets from `address` to `table`.
pub(super) fn source_rule(address: IpAddr, table: u32) -> Rule {
    Rule {
        from: address,
        prefix: if address.is_ipv4() { 32 } else { 128 },
        to: None,
        table,
        priority: RULE_PRIORITY,
    }
}
