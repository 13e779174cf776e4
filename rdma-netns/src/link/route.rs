// SPDX-License-Identifier: Apache-2.0
//! A route through one netdev.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A route through one netdev (`struct rtmsg`, `include/uapi/linux/rtnetlink.h`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Route {
    /// Network address. The default route has `0.0.0.0` or `::` with prefix 0.
    pub destination: IpAddr,
    /// Length of the destination's prefix, bits.
    pub prefix: u8,
    /// Next hop. `None`: the destination is on the netdev's link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Preferred source address (`src`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// Priority: the kernel prefers the lowest metric. `None`: the kernel's default (0; 1024 for IPv6).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
    /// Number of the routing table; the main table is 254.
    #[serde(default = "main_table")]
    pub table: u32,
    /// Origin (`RTPROT_*`): 2 kernel, 3 boot, 4 static, 9 router advertisement.
    #[serde(default = "static_protocol")]
    pub protocol: u8,
    /// `RT_SCOPE_*`: 0 global, 253 link.
    #[serde(default)]
    pub scope: u8,
    /// True if the kernel treats the gateway as reachable on the link without a route to it.
    #[serde(default)]
    pub onlink: bool,
    /// Path MTU, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// TCP maximum segment size advertised, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    /// Further metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Box<RouteMetrics>>,
    /// Type of service of the packets to which the route applies (IPv4 only). 0: the route applies to all packets.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tos: u8,
    /// Seconds until the kernel removes the route (`RTA_EXPIRES`, IPv6 only). `None`: the route does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u32>,
    /// Preference among several default routers (`RTA_PREF`, RFC 4191, section 2.1, IPv6 only): 0 medium, 1 high, 3
    /// low.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub preference: u8,
}

/// Attributes that few routes have (`RTA_METRICS`, `RTA_FLOW`).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RouteMetrics {
    /// Numbers by `RTAX_*` (`include/uapi/linux/rtnetlink.h`), in the kernel's order and units: for example `initcwnd`,
    /// `hoplimit`, `rto_min`, and the mask of locked metrics.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numbers: Vec<(u16, u32)>,
    /// Congestion control of TCP (`RTAX_CC_ALGO`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
    /// Realms of source and destination (`RTA_FLOW`, IPv4 only). The kernel counts and classifies packets by them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub realm: Option<u32>,
}

/// `RT_TABLE_MAIN`.
pub const MAIN_TABLE: u32 = 254;
/// `RTPROT_KERNEL`: the kernel made the route with an address.
pub const PROTOCOL_KERNEL: u8 = 2;
/// `RTPROT_STATIC`: an administrator made the route.
pub const PROTOCOL_STATIC: u8 = 4;
/// `RTPROT_RA`: the kernel made the route from a router advertisement.
pub const PROTOCOL_RA: u8 = 9;
/// `ICMPV6_ROUTER_PREF_HIGH` (`include/uapi/linux/icmpv6.h`): high router preference.
pub const HIGH_PREFERENCE: u8 = 1;
/// `ICMPV6_ROUTER_PREF_LOW`: low router preference.
pub const LOW_PREFERENCE: u8 = 3;
/// `RT_SCOPE_LINK`: the destination is on the link.
pub const SCOPE_LINK: u8 = 253;

fn main_table() -> u32 {
    MAIN_TABLE
}

fn static_protocol() -> u8 {
    PROTOCOL_STATIC
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u8) -> bool {
    *number == 0
}

impl Route {
    /// Returns a static route in the main table.
    pub fn new(destination: IpAddr, prefix: u8) -> Self {
        Self {
            destination,
            prefix,
            gateway: None,
            source: None,
            metric: None,
            table: MAIN_TABLE,
            protocol: PROTOCOL_STATIC,
            scope: 0,
            onlink: false,
            mtu: None,
            advmss: None,
            metrics: None,
            tos: 0,
            expires: None,
            preference: 0,
        }
    }

    /// Returns true if `other` is the same route, ignoring the remaining lifetime.
    pub fn same_as(&self, other: &Self) -> bool {
        let expires = self.expires;
        // the destination comes first: a host has thousands of routes, and most differ in the destination
        self.same_destination(other)
            && *self
                == Self {
                    expires,
                    ..other.clone()
                }
    }

    /// Returns true if `other` has this route's destination, table and type of service.
    pub fn same_destination(&self, other: &Self) -> bool {
        (self.destination, self.prefix, self.table, self.tos)
            == (other.destination, other.prefix, other.table, other.tos)
    }

    /// Returns true if `ip` is in the route's destination.
    pub fn leads_to(&self, ip: IpAddr) -> bool {
        contains(self.destination, self.prefix, ip)
    }

    /// Returns the metric that the kernel uses for a route without a metric: 0 for IPv4, `IP6_RT_PRIO_USER` for IPv6
    /// (`include/uapi/linux/ipv6_route.h`).
    pub fn default_metric(&self) -> u32 {
        if self.destination.is_ipv4() { 0 } else { 1024 }
    }
}

/// Returns true if `ip` is in the network `network` with a prefix of `length` bits.
pub(crate) fn contains(network: IpAddr, length: u8, ip: IpAddr) -> bool {
    let shift = |bits: u32| bits.saturating_sub(u32::from(length));
    match (network, ip) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let differing = u64::from(a.to_bits() ^ b.to_bits());
            differing >> shift(32) == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            (a.to_bits() ^ b.to_bits())
                .checked_shr(shift(128))
                .unwrap_or(0)
                == 0
        }
        _ => false,
    }
}
