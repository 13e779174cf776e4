// SPDX-License-Identifier: Apache-2.0
//! The netdevs by which the node is reachable. A move of one of them cuts off the node.
//!
//! | netdev | why |
//! |---|---|
//! | netdev of the IPv4 default route | kubelet takes the node's address from this route |
//! | netdev of the IPv6 default route; of several equal routes, only those through a netdev of the IPv4 default route, if the host has one | kubelet takes the node's address from this route if there is no IPv4 default route |
//! | netdev through which the node reaches an API server | kubelet talks to the API server |
//! | lower netdev or port of one of these netdevs | the packets of these netdevs pass through it |
//!
//! Only some default routes count: in each table and family those with the lowest metric, and among equal metrics those
//! with the highest preference that routers advertise (RFC 4191, section 2.1). Default routes of rails have higher
//! metrics. Two kinds of tables count: the main table, and each table to which a [`GeneralRule`] for any destination
//! leads, if the rule suppresses no routes. A table does not count if an earlier rule leads all packets to another
//! table with a default route. A rail's own table does not count, because its rules name the rail's address as source.
//! A host can have several equal IPv6 default routes: routers advertise them on every netdev. Kubelet takes the node's
//! address from the IPv4 default route, or without one from the IPv6 default route (`chooseHostInterface()`,
//! `k8s.io/apimachinery/pkg/util/net/interface.go`).

use crate::{
    GeneralRule, Link, Namespace, Route,
    link::{HIGH_PREFERENCE, LOW_PREFERENCE, MAIN_TABLE, contains},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

/// Reason why the node is unreachable without the netdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// A default route leads through the netdev.
    DefaultRoute,
    /// The node reaches this API server through the netdev.
    ApiServer(IpAddr),
}

impl fmt::Display for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DefaultRoute => f.write_str("the node's default route uses it"),
            Self::ApiServer(server) => {
                write!(f, "the node reaches its API server {server} through it")
            }
        }
    }
}

impl Namespace {
    /// Returns the netdevs by which the node with this namespace is reachable, by index.
    pub fn uplinks(&self, api_servers: &[IpAddr]) -> BTreeMap<u32, Uplink> {
        let mut ipv4 = self.by_rules(false);
        ipv4.extend(self.default_netdevs(false, MAIN_TABLE));
        let advertised = self.default_netdevs(true, MAIN_TABLE);
        let by_both: BTreeSet<u32> = advertised.intersection(&ipv4).copied().collect();
        let mut ipv6 = self.by_rules(true);
        ipv6.extend(match advertised.len() > 1 && !ipv4.is_empty() {
            true => by_both,
            false => advertised,
        });
        let mut found: BTreeMap<u32, Uplink> = BTreeMap::new();
        for netdev in ipv4.union(&ipv6) {
            self.add_with_lower(*netdev, Uplink::DefaultRoute, &mut found);
        }
        for server in api_servers {
            for netdev in self.towards(*server) {
                self.add_with_lower(netdev, Uplink::ApiServer(*server), &mut found);
            }
        }
        found
    }

    fn add_with_lower(&self, netdev: u32, why: Uplink, found: &mut BTreeMap<u32, Uplink>) {
        if found.contains_key(&netdev) {
            return;
        }
        found.insert(netdev, why);
        let lower = self.link_by_index(netdev).and_then(|link| link.lower);
        let ports = self.links.iter().filter(|it| it.master == Some(netdev));
        for below in ports.map(|port| port.index).chain(lower) {
            self.add_with_lower(below, why, found);
        }
    }

    fn routes_of(&self, table: u32) -> impl Iterator<Item = (u32, &Route)> {
        let own = self.links.iter();
        let own = own.flat_map(|link| link.routes.iter().map(|route| (link.index, route)));
        let others = self.unkept_routes.iter();
        let all = own.chain(others.map(|(index, route)| (*index, route)));
        all.filter(move |(_, route)| route.table == table)
    }

    /// Returns the [`GeneralRule`]s of a family in order. Appends a rule for the main table if no unconditional rule
    /// leads to it.
    fn lookups(&self, ipv6: bool) -> Vec<GeneralRule> {
        let mut rules = self.general_rules.clone();
        rules.retain(|rule| rule.to.is_ipv6() == ipv6);
        let is_main = |rule: &GeneralRule| rule.table == MAIN_TABLE && rule.is_for_all();
        if !rules.iter().any(is_main) {
            rules.push(GeneralRule {
                to: match ipv6 {
                    true => IpAddr::from([0; 16]),
                    false => IpAddr::from([0; 4]),
                },
                prefix: 0,
                table: MAIN_TABLE,
                suppressed: None,
                conditional: false,
            });
        }
        rules
    }

    /// Returns the netdevs of the default routes that the rules of a family select for packets to any destination,
    /// without the main table.
    fn by_rules(&self, ipv6: bool) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        let rules = self.lookups(ipv6).into_iter();
        for rule in rules.filter(|rule| rule.prefix == 0 && rule.suppressed.is_none()) {
            let netdevs = self.default_netdevs(ipv6, rule.table);
            let ends = !netdevs.is_empty() && rule.is_for_all();
            if rule.table != MAIN_TABLE {
                found.extend(netdevs);
            }
            if ends {
                break;
            }
        }
        found
    }

    /// Returns the netdevs of a family's default routes with the lowest [`rank`] in a table.
    fn default_netdevs(&self, ipv6: bool, table: u32) -> BTreeSet<u32> {
        let routes = || {
            self.routes_of(table)
                .filter(|(_, route)| route.prefix == 0 && route.destination.is_ipv6() == ipv6)
        };
        let first = routes().map(|(_, route)| rank(route)).min();
        let best = routes().filter(|(_, route)| Some(rank(route)) == first);
        best.map(|(netdev, _)| netdev).collect()
    }

    /// Returns the netdevs through which the node reaches `address`. Ignores default routes by rules for all
    /// destinations, because [`Self::uplinks`] counts them anyway. If the address is the node's own, returns the netdev
    /// that has it.
    fn towards(&self, address: IpAddr) -> BTreeSet<u32> {
        let has = |link: &&Link| link.addresses.iter().any(|it| it.ip == address);
        if let Some(own) = self.links.iter().find(has) {
            return BTreeSet::from([own.index]);
        }
        let mut found = BTreeSet::new();
        let rules = self.lookups(address.is_ipv6()).into_iter();
        for rule in rules.filter(|it| contains(it.to, it.prefix, address)) {
            let fitting = || {
                self.routes_of(rule.table).filter(|(_, route)| {
                    route.leads_to(address) && Some(route.prefix) > rule.suppressed
                })
            };
            let order = |route: &Route| (std::cmp::Reverse(route.prefix), rank(route));
            let Some(best) = fitting().map(|(_, route)| order(route)).min() else {
                continue;
            };
            let counts_anyway = best.0.0 == 0 && rule.prefix == 0;
            if !counts_anyway {
                let best = fitting().filter(|(_, route)| order(route) == best);
                found.extend(best.map(|(netdev, _)| netdev));
            }
            if !rule.conditional {
                break;
            }
        }
        found
    }
}

impl GeneralRule {
    /// Returns true if the rule selects all packets of its family and all routes of its table.
    fn is_for_all(&self) -> bool {
        self.prefix == 0 && self.suppressed.is_none() && !self.conditional
    }
}

/// Returns the rank of a route among the routes to one destination. The kernel uses the route with the lowest rank
/// (`rt6_score_route()`, `net/ipv6/route.c`, compares preferences).
fn rank(route: &Route) -> (u32, u8) {
    let preference = match route.preference {
        HIGH_PREFERENCE => 0,
        LOW_PREFERENCE => 2,
        _ => 1,
    };
    (route.metric.unwrap_or(route.default_metric()), preference)
}

#[cfg(test)]
#[path = "uplink_tests.rs"]
mod tests;
