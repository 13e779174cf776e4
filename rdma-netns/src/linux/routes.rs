// SPDX-License-Identifier: Apache-2.0
//! Routes in rtnetlink (`RTM_*ROUTE`, `include/uapi/linux/rtnetlink.h`).
//!
//! The kernel reports several IPv6 routes with the same destination and metric as one route with several next hops, but
//! adds and removes them one by one. So the module returns one route for each next hop.
//!
//! A [`Route`] cannot fully represent IPv4 routes with several next hops, routes with a nexthop object or an
//! encapsulation, and routes by source prefix. [`Parsed::kept`] is false for them, because a route that is set in part
//! is worse than no route. [`super::nexthops`] queries the netdevs of a nexthop object, because the kernel may report
//! the route without them (`net.ipv4.nexthop_compat_mode`).
//!
//! The kernel reports the remaining lifetime of an IPv6 route. IPv4 routes do not expire.

use super::{family_of, ip_of, link_messages::number, unspecified};
use crate::{
    Route,
    link::{PROTOCOL_KERNEL, RouteMetrics},
    netlink::{attribute, attributes, text, u16_of, u32_of},
};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{
        RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric,
        RoutePreference, RouteType, RouteVia,
    },
};
use nix::libc::{
    RTA_CACHEINFO, RTA_DST, RTA_FLOW, RTA_GATEWAY, RTA_METRICS, RTA_MULTIPATH, RTA_OIF,
    RTA_PREFSRC, RTA_PRIORITY, RTA_TABLE,
};
use std::net::IpAddr;

/// `sizeof(struct rtmsg)`
const HEADER: usize = 12;

// musl does not define these attributes
const RTA_VIA: u16 = 18;
const RTA_PREF: u16 = 20;
const RTA_ENCAP: u16 = 22;
const RTA_NH_ID: u16 = 30;

const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;
const RTAX_CC_ALGO: u16 = 16;

/// Number of units of `rta_expires` in a second (`USER_HZ`).
const USER_HZ: i32 = 100;

/// `RT_TABLE_LOCAL`: the kernel's table of local addresses.
pub(super) const LOCAL_TABLE: u32 = 255;

/// Builds the request for all routes of `family` and of the type `kind`, in all tables. `Unspec` requests routes of all
/// types.
pub(super) fn dump(family: AddressFamily, kind: RouteType) -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family;
    message.header.kind = kind;
    RouteNetlinkMessage::GetRoute(message)
}

/// Returns the table of an `RTM_NEWROUTE` of any type.
pub(super) fn table(body: &[u8]) -> Option<u32> {
    u32_of(attribute(body.get(HEADER..)?, RTA_TABLE)?)
}

/// Returns netdev and destination of an `RTM_NEWROUTE`. Returns `None` if the route uses none of `netdevs`, is not of
/// the type `kind`, or was made by the kernel.
#[cold]
pub(super) fn special(body: &[u8], kind: RouteType, netdevs: &[u32]) -> Option<(u32, String)> {
    let header = RouteHeader::parse(body).ok()?;
    // Linux before 4.20 ignores the filter of the request
    if header.kind != kind || u8::from(header.protocol) == PROTOCOL_KERNEL {
        return None;
    }
    let (mut to, mut netdev) = (None, None);
    for (kind, value) in attributes(body.get(HEADER..)?) {
        match kind {
            RTA_DST => to = ip_of(value),
            RTA_OIF => netdev = u32_of(value).filter(|it| netdevs.contains(it)),
            _ => {}
        }
    }
    let to = to.map_or_else(|| "default".to_owned(), |it| it.to_string());
    Some((
        netdev?,
        format!("{to}/{}", header.destination_prefix_length),
    ))
}

/// The routes of an `RTM_NEWROUTE`.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    /// True if [`Route`]s represent the routes completely, so that a program can set the routes again.
    pub(super) kept: bool,
    /// One route for each next hop, with the index of its netdev.
    pub(super) hops: Vec<(u32, Route)>,
    /// The route and its nexthop object, if the kernel reports the route without next hops.
    pub(super) by_object: Option<(u32, Route)>,
}

/// Parses an `RTM_NEWROUTE`. Returns `None` if the route is not unicast, is in the local table, is a copy from the
/// kernel's cache, or names neither a netdev nor a nexthop object.
pub(super) fn parse(body: &[u8]) -> Option<Parsed> {
    let header = RouteHeader::parse(body).ok()?;
    let unspecified = unspecified(header.address_family)?;
    // Linux before 4.20 ignores the filter of the request
    if header.kind != RouteType::Unicast || header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let mut route = Route::new(unspecified, header.destination_prefix_length);
    route.table = header.table.into();
    route.protocol = header.protocol.into();
    route.scope = header.scope.into();
    route.onlink = header.flags.contains(RouteFlags::Onlink);
    route.tos = header.tos;
    let (mut netdev, mut object) = (None, None);
    let mut hops: &[u8] = &[];
    let mut beyond = header.source_prefix_length != 0;
    let mut others = RouteMetrics::default();
    for (kind, value) in attributes(body.get(HEADER..)?) {
        match kind {
            RTA_DST => route.destination = ip_of(value)?,
            RTA_OIF => netdev = u32_of(value),
            RTA_GATEWAY => route.gateway = ip_of(value),
            // `struct rtvia`: the family, then the address
            RTA_VIA => route.gateway = value.get(2..).and_then(ip_of),
            RTA_PREFSRC => route.source = ip_of(value),
            RTA_PRIORITY => route.metric = u32_of(value),
            RTA_TABLE => route.table = u32_of(value)?,
            RTA_PREF => route.preference = value.first().copied().unwrap_or(0),
            RTA_CACHEINFO => route.expires = expires(value),
            RTA_METRICS => {
                for (kind, value) in attributes(value) {
                    match kind {
                        RTAX_MTU => route.mtu = u32_of(value),
                        RTAX_ADVMSS => route.advmss = u32_of(value),
                        RTAX_CC_ALGO => others.congestion = text(value).map(str::to_owned),
                        _ => others.numbers.extend(u32_of(value).map(|it| (kind, it))),
                    }
                }
            }
            RTA_FLOW => others.realm = u32_of(value),
            RTA_MULTIPATH => {
                beyond |= header.address_family == AddressFamily::Inet;
                hops = value;
            }
            RTA_NH_ID => {
                beyond = true;
                object = u32_of(value);
            }
            RTA_ENCAP => beyond = true,
            _ => {}
        }
    }
    route.metrics = (others != RouteMetrics::default()).then(|| Box::new(others));
    route.metric = route
        .metric
        .filter(|metric| *metric != route.default_metric());
    if route.table == LOCAL_TABLE {
        return None;
    }
    let (hops, by_object) = match (hops, netdev, object) {
        ([], Some(netdev), _) => (vec![(netdev, route)], None),
        ([], None, object) => (vec![], Some((object?, route))),
        (hops, ..) => {
            let (hops, encapsulated): (Vec<_>, Vec<bool>) = next_hops(hops, &route).unzip();
            beyond |= encapsulated.contains(&true);
            (hops, None)
        }
    };
    Some(Parsed {
        kept: !beyond,
        hops,
        by_object,
    })
}

/// Returns `rta_expires` of a `struct rta_cacheinfo` in seconds. Returns `None` for 0, because such a route does not
/// expire. A negative value belongs to an expired route that the kernel has not removed yet.
fn expires(cache_info: &[u8]) -> Option<u32> {
    let ticks = cache_info
        .get(8..12)?
        .try_into()
        .ok()
        .map(i32::from_ne_bytes)?;
    let seconds = u32::try_from(ticks / USER_HZ).unwrap_or(0);
    (ticks != 0).then_some(seconds)
}

/// Parses the next hops of `route` (`struct rtnexthop`). Each has `rtnh_len`, `rtnh_flags`, `rtnh_hops`,
/// `rtnh_ifindex`, then attributes. Returns the index of each next hop's netdev, `route` with this next hop alone, and
/// true if the next hop has an encapsulation.
fn next_hops(mut hops: &[u8], route: &Route) -> impl Iterator<Item = ((u32, Route), bool)> {
    /// `sizeof(struct rtnexthop)`
    const HOP_HEADER: usize = 8;
    const RTNH_F_ONLINK: u8 = 4;
    std::iter::from_fn(move || {
        let length = usize::from(u16_of(hops.get(..2)?)?);
        let hop = hops.get(..length).filter(|hop| hop.len() >= HOP_HEADER)?;
        hops = hops.get(length.next_multiple_of(4)..).unwrap_or_default();
        let alone = Route {
            gateway: attribute(&hop[HOP_HEADER..], RTA_GATEWAY).and_then(ip_of),
            onlink: hop[2] & RTNH_F_ONLINK != 0,
            ..route.clone()
        };
        let is_encapsulated = attribute(&hop[HOP_HEADER..], RTA_ENCAP).is_some();
        Some(((u32_of(&hop[4..HOP_HEADER])?, alone), is_encapsulated))
    })
}

pub(super) fn add(index: u32, route: &Route) -> RouteNetlinkMessage {
    RouteNetlinkMessage::NewRoute(message(index, route))
}

/// Builds the request that removes a route through the netdev `index`. The request always has a metric, because without
/// it the kernel would remove the matching route with the lowest metric.
pub(super) fn remove(index: u32, route: &Route) -> RouteNetlinkMessage {
    let metric = route.metric.unwrap_or(route.default_metric());
    let route = Route {
        metric: Some(metric),
        ..route.clone()
    };
    RouteNetlinkMessage::DelRoute(message(index, &route))
}

fn message(index: u32, route: &Route) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family_of(route.destination),
        destination_prefix_length: route.prefix,
        table: u8::try_from(route.table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC),
        protocol: route.protocol.into(),
        tos: route.tos,
        scope: route.scope.into(),
        kind: RouteType::Unicast,
        flags: if route.onlink {
            RouteFlags::Onlink
        } else {
            RouteFlags::empty()
        },
        ..RouteHeader::default()
    };
    let attributes = &mut message.attributes;
    attributes.push(RouteAttribute::Oif(index));
    attributes.push(RouteAttribute::Table(route.table));
    if route.prefix != 0 {
        let destination = RouteAddress::from(route.destination);
        attributes.push(RouteAttribute::Destination(destination));
    }
    match (route.destination, route.gateway) {
        (_, None) => {}
        (IpAddr::V4(_), Some(IpAddr::V6(gateway))) => {
            attributes.push(RouteAttribute::Via(RouteVia::Inet6(gateway)));
        }
        (_, Some(gateway)) => {
            attributes.push(RouteAttribute::Gateway(RouteAddress::from(gateway)));
        }
    }
    let source = route.source.map(RouteAddress::from);
    attributes.extend(source.map(RouteAttribute::PrefSource));
    attributes.extend(route.metric.map(RouteAttribute::Priority));
    if route.preference != 0 {
        let preference = RoutePreference::from(route.preference);
        attributes.push(RouteAttribute::Preference(preference));
    }
    attributes.extend(route.expires.map(RouteAttribute::Expires));
    let others = route.metrics.as_deref();
    let realm = others.and_then(|it| it.realm);
    attributes.extend(realm.map(|it| RouteAttribute::Other(number(RTA_FLOW, it))));
    let numbers = others.map_or(&[][..], |it| &it.numbers);
    let numbers = numbers.iter();
    let numbers = numbers.map(|(kind, value)| RouteMetric::Other(number(*kind, *value)));
    let congestion = others.and_then(|it| it.congestion.clone());
    let metrics: Vec<_> = [
        route.mtu.map(RouteMetric::Mtu),
        route.advmss.map(RouteMetric::Advmss),
        congestion.map(RouteMetric::CcAlgo),
    ]
    .into_iter()
    .flatten()
    .chain(numbers)
    .collect();
    if !metrics.is_empty() {
        attributes.push(RouteAttribute::Metrics(metrics));
    }
    message
}
