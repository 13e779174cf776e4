// SPDX-License-Identifier: Apache-2.0
//! An IP address of a netdev, and its prefix route.

use super::route::{Route, contains};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// An IP address on a netdev (`struct ifaddrmsg`, `include/uapi/linux/if_addr.h`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The IP address (`IFA_LOCAL`).
    pub ip: IpAddr,
    /// Length of the address's prefix on the link, bits.
    pub prefix: u8,
    /// Address of the peer on a point-to-point link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<IpAddr>,
    /// IPv4 broadcast address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<IpAddr>,
    /// `RT_SCOPE_*`: 0 global, 253 link, 254 host.
    #[serde(default)]
    pub scope: u8,
    /// Label of an IPv4 address, if the label differs from the netdev's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Metric of the address's prefix route (`IFA_RT_PRIORITY`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
    /// Flags with which a program added the address: `IFA_F_NODAD`, `…OPTIMISTIC`, `…HOMEADDRESS`, `…MANAGETEMPADDR`,
    /// `…NOPREFIXROUTE`, `…MCAUTOJOIN`.
    #[serde(default)]
    pub flags: u32,
    /// Remaining lifetimes (valid, preferred), seconds. `None`: the address does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<(u32, u32)>,
    /// True while the address is unusable, because duplicate address detection is in progress or has failed.
    #[serde(default)]
    pub tentative: bool,
    /// True if duplicate address detection found the address on another host (`IFA_F_DADFAILED`). The netdev keeps the
    /// address, but the kernel does not use it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dad_failed: bool,
    /// True if the kernel made the address, for example from a router advertisement or as a link-local address.
    #[serde(default)]
    pub automatic: bool,
    /// True if the address is a temporary privacy address, which the kernel replaces within days (RFC 8981,
    /// `IFA_F_TEMPORARY`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub temporary: bool,
}

/// `IFA_F_NODAD`: the address is usable at once, without duplicate address detection.
pub const IFA_F_NODAD: u32 = 0x02;
/// `IFA_F_OPTIMISTIC`: the address is usable during duplicate address detection.
pub const IFA_F_OPTIMISTIC: u32 = 0x04;
/// `IFA_F_HOMEADDRESS`: a mobile node's home address.
pub const IFA_F_HOMEADDRESS: u32 = 0x10;
/// `IFA_F_MANAGETEMPADDR`: the kernel makes temporary addresses of the same prefix.
pub const IFA_F_MANAGETEMPADDR: u32 = 0x100;
/// `IFA_F_NOPREFIXROUTE`: the kernel makes no route for the prefix.
pub const IFA_F_NOPREFIXROUTE: u32 = 0x200;
/// `IFA_F_MCAUTOJOIN`: the kernel joins the multicast group of the address.
pub const IFA_F_MCAUTOJOIN: u32 = 0x400;
/// Lifetime of an address that does not expire (`INFINITY_LIFE_TIME`, `include/net/addrconf.h`).
pub const FOR_EVER: u32 = u32::MAX;
/// Metric of an IPv6 address's prefix route (`IP6_RT_PRIO_ADDRCONF`, `include/uapi/linux/ipv6_route.h`).
const IPV6_PREFIX_METRIC: u32 = 256;
/// Mask of the flags that [`Address::flags`] can contain.
pub const GIVEN_FLAGS: u32 = IFA_F_NODAD
    | IFA_F_OPTIMISTIC
    | IFA_F_HOMEADDRESS
    | IFA_F_MANAGETEMPADDR
    | IFA_F_NOPREFIXROUTE
    | IFA_F_MCAUTOJOIN;

impl Address {
    /// Returns a global address without flags, lifetimes or a peer.
    pub fn new(ip: IpAddr, prefix: u8) -> Self {
        Self {
            ip,
            prefix,
            peer: None,
            broadcast: None,
            scope: 0,
            label: None,
            metric: None,
            flags: 0,
            lifetime: None,
            tentative: false,
            dad_failed: false,
            automatic: false,
            temporary: false,
        }
    }

    /// Returns true if the address's prefix identifies the netdev's network. Returns false for addresses of scope link
    /// or host, and for link-local, loopback, multicast and unspecified addresses. Returns false also for tentative,
    /// duplicate, deprecated (preferred lifetime 0) and temporary addresses: another machine may have such an address,
    /// or it may expire soon.
    pub fn names_a_network(&self) -> bool {
        let is_global = match self.ip {
            IpAddr::V4(ip) => !ip.is_link_local(),
            IpAddr::V6(ip) => !ip.is_unicast_link_local(),
        };
        let is_unicast =
            !(self.ip.is_loopback() || self.ip.is_multicast() || self.ip.is_unspecified());
        let is_deprecated = self.lifetime.is_some_and(|(_, preferred)| preferred == 0);
        let is_passing = self.tentative || self.dad_failed || is_deprecated || self.temporary;
        self.scope == 0 && is_global && is_unicast && !is_passing
    }

    /// Returns true if `other` has the same IP address, prefix and peer.
    pub fn same_as(&self, other: &Self) -> bool {
        self.ip == other.ip && self.prefix == other.prefix && self.peer == other.peer
    }

    /// Returns true if `route`, a route with `RTPROT_KERNEL`, is the prefix route of this address (`fib_add_ifaddr()`,
    /// `net/ipv4/fib_frontend.c`; `addrconf_prefix_route()`, `net/ipv6/addrconf.c`). An address with
    /// `IFA_F_NOPREFIXROUTE` has no prefix route.
    pub(super) fn brings(&self, route: &Route) -> bool {
        if self.flags & IFA_F_NOPREFIXROUTE != 0 || route.gateway.is_some() {
            return false;
        }
        let (host, metric) = match self.ip {
            IpAddr::V4(_) => (32, 0),
            IpAddr::V6(_) => (128, IPV6_PREFIX_METRIC),
        };
        let ends = std::iter::once(self.ip).chain(self.peer);
        // the kernel makes no prefix route for an IPv4 address with a prefix of 32 bits and no peer
        let has_route = self.ip.is_ipv6() || self.peer.is_some() || self.prefix < host;
        let is_end = |end: IpAddr| {
            let is_whole = route.prefix == host && route.destination == end;
            is_whole || route.prefix == self.prefix && contains(end, self.prefix, route.destination)
        };
        let same_metric =
            self.metric.unwrap_or(metric) == route.metric.unwrap_or(route.default_metric());
        has_route && same_metric && ends.into_iter().any(is_end)
    }

    /// Returns true if the address is IPv6 and link-local.
    pub fn is_link_local(&self) -> bool {
        matches!(self.ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::SCOPE_LINK;

    #[test]
    fn which_addresses_name_a_network() {
        let address = |ip: &str| Address::new(ip.parse().unwrap(), 24);
        for ip in ["10.0.0.1", "2001:db8::1", "fd00::1"] {
            assert!(address(ip).names_a_network(), "{ip}");
        }
        for ip in [
            "169.254.0.1",
            "127.0.0.1",
            "224.0.0.1",
            "0.0.0.0",
            "fe80::1",
            "::1",
            "ff02::1",
            "::",
        ] {
            assert!(!address(ip).names_a_network(), "{ip}");
        }
        let changes: [fn(&mut Address); 6] = [
            |it| it.scope = SCOPE_LINK,
            |it| it.tentative = true,
            |it| it.dad_failed = true,
            |it| it.lifetime = Some((3600, 0)),
            |it| it.lifetime = Some((u32::MAX, 0)),
            |it| it.temporary = true,
        ];
        for change in changes {
            let mut address = address("2001:db8::1");
            change(&mut address);
            assert!(!address.names_a_network(), "{address:?}");
        }
        let aging = Address {
            lifetime: Some((3600, 1)),
            automatic: true,
            ..address("2001:db8::1")
        };
        assert!(aging.names_a_network(), "from a router advertisement");
    }

    #[test]
    fn an_address_of_an_older_record_is_not_temporary() {
        let address = Address::new("fd00::1".parse().unwrap(), 64);
        let written = serde_json::to_value(&address).unwrap();
        assert!(written.get("temporary").is_none(), "{written}");
        assert_eq!(serde_json::from_value::<Address>(written).unwrap(), address);
    }
}
