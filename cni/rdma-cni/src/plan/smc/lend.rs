//! The address of a pod's primary interface, lent to the rail that is to carry its connections.
//!
//! SMC-Rv2 takes a GID whose netdev has an address with the connection's source in its prefix.
//! Where the rail has none, its own address is set once more, with the primary interface's as the
//! other end: `ip address add OWN peer PRIMARY/32 dev RAIL noprefixroute`. The other end is what
//! the kernel compares (`inet_ifa_match()` in `smc_ib_determine_gid_rcu()`, `net/smc/smc_ib.c`).
//! As an address of the rail itself it would be two netdevs': the rail would answer ARP for it
//! under `arp_ignore` 1, and multicast groups joined by it would be joined on the rail, which
//! `ip_dev_find()` finds first (docs/lab.md).
//!
//! For RDMA the kernel needs the way to the peer's GID, and takes it from the route that the
//! connection's source has there (`smc_ib_find_route()`): the pod's main table, not the rail's.

use super::{fits::Sight, rails::Carrier};
use crate::{
    attachment::{Attachment, Lent, Rail},
    plan::connected,
};
use ipnetwork::Ipv4Network;
use rdma_netns::{
    Address, Child, Link, Observed, Op, Place, Route, Rule,
    link::{IFA_F_NOPREFIXROUTE, MAIN_TABLE},
};
use std::net::{IpAddr, Ipv4Addr};

/// The priority of the rule that leads to the main table (`fib_default_rules_init()`,
/// `net/ipv4/fib_rules.c`).
const MAIN_PRIORITY: u32 = 32766;

/// Why the primary interface's address is not lent to a rail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unlendable {
    /// Peers would be told the lent address as GID, which only the primary interface's network
    /// has a way to.
    #[error("{rail} has no IPv4 address of its own for peers to send to; give it one")]
    NoOwn {
        /// The rail's name in the pod.
        rail: String,
    },
    /// An ipvlan netdev gives a child whatever is for its addresses, and for their other ends
    /// (`ipvlan_addr4_event()`, `drivers/net/ipvlan/ipvlan_main.c`).
    #[error(
        "{rail} is an ipvlan child, which would get the packets to it that are the primary \
         interface's; use macvlan"
    )]
    Ipvlan {
        /// The rail's name in the pod.
        rail: String,
    },
    /// The main table is not the one that counts.
    #[error(
        "the pod's rule \"{0}\" leads elsewhere than the main table, where the rail's routes are"
    )]
    Ruled(Rule),
    /// RDMA to every peer would be addressed to another interface's router.
    #[error(
        "no route of the pod's main table leads by {rail}, so that RDMA would be addressed to another \
         interface's router; have IPAM give it a route to the peers' rail addresses"
    )]
    NoWay {
        /// The rail's name in the pod.
        rail: String,
    },
    /// Peers behind the rail's router are meant to be reached, but not by the main table.
    #[error(
        "peers behind router {router} of {rail} are reached by the rail's own table only, so that \
         RDMA to them would be addressed to another interface's router; have IPAM give {rail} a \
         route by {router} to the peers' rail addresses"
    )]
    Beyond {
        /// The rail's name in the pod.
        rail: String,
        /// The router.
        router: IpAddr,
    },
    /// A pod of this node would be such a peer.
    #[error(
        "{holder} has SMC-R by its rail address {address}, to which no route of this pod's main table \
         leads by {rail}: RDMA to it would be addressed to another interface's router; have IPAM give \
         {rail} a route to the peers' rail addresses"
    )]
    Apart {
        /// The rail's name in the pod.
        rail: String,
        /// The other pod.
        holder: String,
        /// Its rail's address.
        address: IpAddr,
    },
    /// It was tried.
    #[error("{0}")]
    Refused(String),
}

/// What `primary`'s first IPv4 address is lent as to the rail of `carrier`; none: it has none, or
/// the rail is not this plugin's to change.
pub(super) fn lend(
    sight: Sight<'_>,
    carrier: &Carrier,
    primary: &Link,
) -> Option<Result<Lent, Unlendable>> {
    let rail = &sight.attachment.rails[carrier.rail];
    let ip = ipv4(primary).filter(|_| rail.is_ours())?;
    Some(lend_to(sight, rail, ip))
}

fn lend_to(sight: Sight<'_>, rail: &Rail, ip: Ipv4Addr) -> Result<Lent, Unlendable> {
    let name = || rail.pod_name.to_string();
    let mut addresses = rail.given.addresses.iter();
    let is_own = |it: &&Address| it.ip.is_ipv4() && it.peer.is_none() && it.scope == 0;
    let own = addresses.find(is_own);
    let own = own.ok_or_else(|| Unlendable::NoOwn { rail: name() })?.ip;
    let child = rail.shared.as_ref().map(|shared| shared.child);
    if let Some(Child::Ipvlan(_)) = child {
        return Err(Unlendable::Ipvlan { rail: name() });
    }
    check_ways(rail, ip, sight.observed)?;
    let mut address = Address::new(own, 32);
    address.peer = Some(ip.into());
    address.flags = IFA_F_NOPREFIXROUTE;
    Ok(Lent {
        rail: rail.pod_name.clone(),
        address,
    })
}

/// The address that a netdev's connections come from as a rule.
pub(super) fn ipv4(link: &Link) -> Option<Ipv4Addr> {
    let mut addresses = link.addresses.iter().filter(|it| it.scope == 0);
    addresses.find_map(|it| match it.ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    })
}

/// Whether `ip` is in the prefix of an address of the rail, by itself or as the other end.
pub(super) fn is_covered(rail: &Rail, ip: Ipv4Addr) -> bool {
    let mut addresses = rail.given.addresses.iter();
    addresses.any(|it| match it.peer.unwrap_or(it.ip) {
        IpAddr::V4(end) => {
            Ipv4Network::new(end, it.prefix).is_ok_and(|network| network.contains(ip))
        }
        IpAddr::V6(_) => false,
    })
}

/// The sight as it is once `lent` is there.
pub(super) fn with(observed: &Observed, lent: &Lent) -> Observed {
    let mut observed = observed.clone();
    let links = observed.pod.iter_mut().flat_map(|pod| &mut pod.links);
    for link in links.filter(|link| link.name == lent.rail) {
        link.addresses.push(lent.address.clone());
    }
    observed
}

/// The change that is missing as long as `lent` is not there.
pub fn missing(lent: &Lent, observed: &Observed) -> Option<Op> {
    let Lent { rail, address } = lent;
    let link = observed.pod.as_ref()?.link(rail);
    let is_there = link.is_some_and(|link| link.address(address).is_some());
    (!is_there).then(|| Op::AddAddress {
        at: Place::Pod,
        link: rail.clone(),
        address: address.clone(),
    })
}

/// The change that takes `lent` away, if it is there.
pub fn surplus(lent: &Lent, observed: &Observed) -> Option<Op> {
    let Lent { rail, address } = lent;
    let link = observed.pod.as_ref()?.link(rail)?;
    let there = link.address(address)?;
    Some(Op::RemoveAddress {
        at: Place::Pod,
        link: link.name.clone(),
        address: there.clone(),
    })
}

/// Why `lent` leads astray as the pod's routes and rules are now.
pub fn astray(attachment: &Attachment, lent: &Lent, observed: &Observed) -> Option<Unlendable> {
    let mut rails = attachment.rails.iter();
    let rail = rails.find(|rail| rail.pod_name == lent.rail)?;
    check_ways(rail, lent.ip()?, observed).err()
}

/// Where peers' rail addresses have to be for connections that `lent` makes possible.
pub fn reach(attachment: &Attachment, lent: &Lent, observed: &Observed) -> String {
    let mut rails = attachment.rails.iter();
    let Some(rail) = rails.find(|rail| rail.pod_name == lent.rail) else {
        return String::new();
    };
    let network = |route: &Route| format!("{}/{}", route.destination, route.prefix);
    let words = ways(rail, observed).into_iter().map(|way| {
        let others = others(rail, observed);
        let within = others.filter(|it| it.prefix > way.prefix && is_within(it.destination, &way));
        let within: Vec<String> = within.map(network).collect();
        match within.is_empty() {
            true => network(&way),
            false => format!("{} (but not in {})", network(&way), within.join(", ")),
        }
    });
    words.collect::<Vec<_>>().join(", ")
}

fn check_ways(rail: &Rail, ip: Ipv4Addr, observed: &Observed) -> Result<(), Unlendable> {
    let name = || rail.pod_name.to_string();
    let rules = observed.pod.iter().flat_map(|pod| &pod.rules);
    let is_its = |rule: &&Rule| match rule.from {
        IpAddr::V4(from) => Ipv4Network::new(from, rule.prefix).is_ok_and(|it| it.contains(ip)),
        IpAddr::V6(_) => false,
    };
    let is_first = |rule: &&Rule| rule.table != MAIN_TABLE && rule.priority < MAIN_PRIORITY;
    let mut elsewhere = rules.filter(is_its).filter(is_first);
    if let Some(rule) = elsewhere.next() {
        return Err(Unlendable::Ruled(rule.clone()));
    }
    let ways = ways(rail, observed);
    if ways.is_empty() {
        return Err(Unlendable::NoWay { rail: name() });
    }
    let own_table = rail.given.routes.iter().filter(|it| it.table != MAIN_TABLE);
    let router = own_table
        .filter_map(|it| it.gateway)
        .find(IpAddr::is_ipv4)
        .filter(|_| ways.iter().all(|it| it.gateway.is_none()));
    match router {
        Some(router) => Err(Unlendable::Beyond {
            rail: name(),
            router,
        }),
        None => Ok(()),
    }
}

/// Refuses a rail that does not lead to those of other pods whose primary interfaces are carried.
pub(super) fn check_peers(sight: Sight<'_>, carrier: &Carrier) -> Result<(), Unlendable> {
    let rail = &sight.attachment.rails[carrier.rail];
    let netns_id = &sight.attachment.netns_id;
    for other in sight.others.iter().filter(|it| it.netns_id != *netns_id) {
        let lent = other.smc.iter().filter_map(|smc| smc.lent.as_ref());
        let mut addresses = lent.map(|lent| lent.address.ip);
        if let Some(address) = addresses.find(|ip| !leads_to(rail, *ip, sight.observed)) {
            return Err(Unlendable::Apart {
                rail: rail.pod_name.to_string(),
                holder: other.holder(),
                address,
            });
        }
    }
    Ok(())
}

/// Whether the main table's way to `ip` leaves by the rail: it has the longest prefix, and of those
/// the lowest metric. Both ends being on a link, either netdev's tells the peer's own address.
fn leads_to(rail: &Rail, ip: IpAddr, observed: &Observed) -> bool {
    let rank = |route: &Route| (route.prefix, u32::MAX - metric(route));
    let ours = ways(rail, observed).into_iter();
    let ours = ours.filter(|it| is_within(ip, it)).max_by_key(rank);
    let theirs = others(rail, observed).filter(|it| is_within(ip, it));
    let theirs = theirs.max_by_key(|it| rank(it));
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => {
            let on_link = ours.gateway.is_none() && theirs.gateway.is_none();
            on_link || rank(&ours) > rank(theirs)
        }
        (ours, _) => ours.is_some(),
    }
}

/// The rail's IPv4 routes of the main table that are used: no other netdev has one to the same
/// place that comes first, where either is by a router.
fn ways(rail: &Rail, observed: &Observed) -> Vec<Route> {
    let is_before = |other: &Route, route: &Route| {
        let is_routed = other.gateway.is_some() || route.gateway.is_some();
        is_routed && other.same_destination(route) && metric(other) < metric(route)
    };
    let connected: Vec<Route> = rail.given.addresses.iter().filter_map(connected).collect();
    let routes = connected.iter().chain(&rail.given.routes);
    let routes = routes.filter(|it| it.table == MAIN_TABLE && it.destination.is_ipv4());
    let used = routes.filter(|route| !others(rail, observed).any(|other| is_before(other, route)));
    used.cloned().collect()
}

/// The pod's IPv4 routes of the main table that are other netdevs'.
fn others<'a>(rail: &'a Rail, observed: &'a Observed) -> impl Iterator<Item = &'a Route> {
    let links = observed.pod.iter().flat_map(|pod| &pod.links);
    let others = links.filter(|link| link.name != rail.pod_name);
    let routes = others.flat_map(|link| &link.routes);
    routes.filter(|it| it.table == MAIN_TABLE && it.destination.is_ipv4())
}

fn metric(route: &Route) -> u32 {
    route.metric.unwrap_or(route.default_metric())
}

/// Whether `ip` is in the IPv4 network that `route` leads to.
fn is_within(ip: IpAddr, route: &Route) -> bool {
    match (ip, route.destination) {
        (IpAddr::V4(ip), IpAddr::V4(destination)) => {
            Ipv4Network::new(destination, route.prefix).is_ok_and(|it| it.contains(ip))
        }
        _ => false,
    }
}
