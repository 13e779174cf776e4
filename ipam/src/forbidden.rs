// SPDX-License-Identifier: Apache-2.0
//! The addresses of a pool that no pod gets.

use crate::{
    address::{Family, number},
    range::Pool,
};
use ipnetwork::IpNetwork;
use std::net::IpAddr;

/// Reason why the plugin never assigns an address. Its text completes the sentence "10.0.0.1 is …".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// The address is a gateway or another router.
    #[error("a gateway")]
    Gateway,
    /// A netdev of this host has the address, or had it before the netdev moved into a pod.
    #[error("an address of this host itself")]
    Own,
    /// The address is the first one of a prefix whose router is unknown.
    #[error("the usual address of a router in a prefix whose router is unknown")]
    RouterPlace,
    /// All host bits are 0 (RFC 1122, section 3.2.1.3).
    #[error("the network address of {0}")]
    Network(IpNetwork),
    /// All host bits are 1 (RFC 1122, section 3.2.1.3).
    #[error("the broadcast address of {0}")]
    Broadcast(IpNetwork),
    /// All interface identifier bits are 0 (RFC 4291, section 2.6.1).
    #[error("the subnet-router anycast address of {0}")]
    Anycast(IpNetwork),
    /// The interface identifier is in IANA's registry (RFC 5453).
    #[error("reserved by RFC 5453")]
    Identifier,
    /// The configuration excludes the address.
    #[error("excluded by ipam.exclude")]
    Excluded,
}

/// Interface identifiers of a /64 that RFC 5453 reserves: IANA's Ethernet block (with proxy mobile IPv6), and the
/// subnet anycast addresses of RFC 2526. The third reserved identifier is all zeros. [`Why::Anycast`] covers it.
const IDENTIFIERS: [(u64, u64); 2] = [
    (0x0200_5eff_fe00_0000, 0x0200_5eff_feff_ffff),
    (0xfdff_ffff_ffff_ff80, 0xfdff_ffff_ffff_ffff),
];

#[derive(Clone, Copy, Debug)]
struct Interval {
    first: u128,
    last: u128,
    why: Why,
}

/// The addresses of one pool that are never assigned.
#[derive(Clone, Debug)]
pub struct Forbidden {
    family: Family,
    intervals: Vec<Interval>,
}

impl Forbidden {
    /// Returns the addresses of `pool` that are never assigned on a host that has the addresses `own`.
    pub fn of(pool: &Pool, own: &[IpAddr]) -> Self {
        let family = pool.family();
        let mut forbidden = Self {
            family,
            intervals: vec![],
        };
        for range in pool.ranges() {
            let (first, last) = (
                number(range.subnet.network()),
                number(range.subnet.broadcast()),
            );
            match family {
                Family::V4 => {
                    forbidden.push(first, first, Why::Network(range.subnet));
                    forbidden.push(last, last, Why::Broadcast(range.subnet));
                }
                Family::V6 => forbidden.push(first, first, Why::Anycast(range.subnet)),
            }
            if family == Family::V6 && range.subnet.prefix() == 64 {
                for (low, high) in IDENTIFIERS {
                    let (low, high) = (first | u128::from(low), first | u128::from(high));
                    forbidden.push(low, high, Why::Identifier);
                }
            }
        }
        let gateways = pool.ranges().iter().filter_map(|range| range.gateway);
        for ip in gateways.chain(pool.routers.iter().copied()) {
            forbidden.address(ip, Why::Gateway);
        }
        for ip in own {
            forbidden.address(*ip, Why::Own);
        }
        if let Some(ip) = pool.router_address {
            forbidden.address(ip, Why::RouterPlace);
        }
        for (first, last) in &pool.excluded {
            forbidden.push(*first, *last, Why::Excluded);
        }
        forbidden
    }

    fn address(&mut self, ip: IpAddr, why: Why) {
        if Family::of(ip) == self.family {
            self.push(number(ip), number(ip), why);
        }
    }

    fn push(&mut self, first: u128, last: u128, why: Why) {
        self.intervals.push(Interval { first, last, why });
    }

    /// Returns the reason why the address `number` is never assigned. `None`: it can be assigned.
    pub fn why(&self, number: u128) -> Option<Why> {
        self.interval(number).map(|interval| interval.why)
    }

    /// Returns the last address of the forbidden interval that contains `number`.
    pub fn until(&self, number: u128) -> Option<u128> {
        self.interval(number).map(|interval| interval.last)
    }

    fn interval(&self, number: u128) -> Option<&Interval> {
        self.intervals
            .iter()
            .find(|interval| (interval.first..=interval.last).contains(&number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{address::cidr, range::Range};

    #[test]
    fn each_has_its_reason() {
        let pool = |subnet: &str| {
            let range = Range::new(cidr(subnet).unwrap(), None, None, None).unwrap();
            Pool::new(vec![range], "0".into()).unwrap()
        };
        let own = ["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
        for (subnet, ip, why) in [
            (
                "10.0.0.0/24",
                "10.0.0.0",
                "the network address of 10.0.0.0/24",
            ),
            (
                "10.0.0.0/24",
                "10.0.0.255",
                "the broadcast address of 10.0.0.0/24",
            ),
            ("10.0.0.0/24", "10.0.0.1", "a gateway"),
            ("10.0.0.0/24", "10.0.0.7", "an address of this host itself"),
            (
                "fd00::/64",
                "fd00::",
                "the subnet-router anycast address of fd00::/64",
            ),
            ("fd00::/64", "fd00::7", "an address of this host itself"),
            (
                "fd00::/64",
                "fd00::200:5eff:fe00:5213",
                "reserved by RFC 5453",
            ),
            (
                "fd00::/64",
                "fd00::fdff:ffff:ffff:ff80",
                "reserved by RFC 5453",
            ),
        ] {
            let forbidden = Forbidden::of(&pool(subnet), &own);
            let reason = forbidden.why(number(ip.parse().unwrap()));
            assert_eq!(
                reason.map(|it| it.to_string()).as_deref(),
                Some(why),
                "{ip}"
            );
        }
        let forbidden = Forbidden::of(&pool("fd00::/64"), &own);
        for free in [
            "fd00::2",
            "fd00::fdff:ffff:ffff:ff7f",
            "fd00::ffff:ffff:ffff:ffff",
        ] {
            assert_eq!(forbidden.why(number(free.parse().unwrap())), None, "{free}");
        }
    }
}
