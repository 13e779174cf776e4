// SPDX-License-Identifier: Apache-2.0
//! Ranges of addresses, with the meaning and the defaults that they have in host-local.
//!
//! A [`Pool`] contains the candidates for one address. It is a range set of the configuration, or one prefix of the
//! parent.

use crate::address::{Family, number};
use ipnetwork::IpNetwork;
use std::{fmt, net::IpAddr};

/// A checked range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Network of the range.
    pub subnet: IpNetwork,
    /// First address.
    pub start: u128,
    /// Last address.
    pub end: u128,
    /// Gateway in the result. It is never assigned.
    pub gateway: Option<IpAddr>,
}

/// The reason why a range is invalid. The text names the rule that the field breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rule}")]
pub struct RangeError {
    field: &'static str,
    rule: String,
}

impl RangeError {
    fn new(field: &'static str, rule: String) -> Self {
        Self { field, rule }
    }

    /// Returns the name of the invalid field.
    pub fn field(&self) -> &'static str {
        self.field
    }
}

impl Range {
    /// Returns the range from `start` to `end` in `subnet`. The default `start` is the subnet's second address. The
    /// default `end` is the last address, or for IPv4 the last one before the broadcast address. The default `gateway`
    /// is the first address after the network address. A gateway outside the subnet is valid, as in host-local: it may
    /// be link-local, or the next plugin may make it reachable.
    pub fn new(
        subnet: IpNetwork,
        start: Option<IpAddr>,
        end: Option<IpAddr>,
        gateway: Option<IpAddr>,
    ) -> Result<Self, RangeError> {
        let family = Family::of(subnet.ip());
        let mut range = Self::of_prefix(subnet)?;
        range.gateway = gateway.or(Some(family.address(range.start)));
        for (field, ip, bound) in [
            ("rangeStart", start, &mut range.start),
            ("rangeEnd", end, &mut range.end),
        ] {
            let Some(ip) = ip else { continue };
            if !subnet.contains(ip) {
                let rule = format!("must be an address of the subnet {subnet}");
                return Err(RangeError::new(field, rule));
            }
            *bound = number(ip);
        }
        if range.end < range.start {
            let start = family.address(range.start);
            let rule = format!("must not be before rangeStart, {start}");
            return Err(RangeError::new("rangeEnd", rule));
        }
        if gateway.is_some_and(|gateway| Family::of(gateway) != family) {
            let rule = format!("must be an {family} address, as the subnet is");
            return Err(RangeError::new("gateway", rule));
        }
        Ok(range)
    }

    /// Returns the range of all addresses of `subnet` that can be assigned. The field `gateway` is `None`.
    pub fn of_prefix(subnet: IpNetwork) -> Result<Self, RangeError> {
        let family = Family::of(subnet.ip());
        let (network, length) = (subnet.network(), subnet.prefix());
        let longest = family.longest_prefix();
        // `/31`, `/32`, `/127` and `/128` have no address to assign
        if length > longest {
            let rule = format!(
                "it is too small to assign addresses; the longest {family} prefix is /{longest}"
            );
            return Err(RangeError::new("subnet", rule));
        }
        if subnet.ip() != network {
            let rule = format!("it has host bits set; the network is {network}/{length}");
            return Err(RangeError::new("subnet", rule));
        }
        let last = number(subnet.broadcast());
        Ok(Self {
            subnet,
            start: number(network) + 1,
            end: match family {
                Family::V4 => last - 1,
                Family::V6 => last,
            },
            gateway: None,
        })
    }

    /// Returns the address family.
    pub fn family(&self) -> Family {
        Family::of(self.subnet.ip())
    }

    /// Returns true if the range contains `ip`.
    pub fn contains(&self, ip: IpAddr) -> bool {
        Family::of(ip) == self.family() && (self.start..=self.end).contains(&number(ip))
    }

    /// Returns the number of addresses.
    pub fn size(&self) -> u128 {
        (self.end - self.start).saturating_add(1)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.family() == other.family() && self.start <= other.end && other.start <= self.end
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = |number| self.family().address(number);
        write!(
            f,
            "{}-{} of {}",
            address(self.start),
            address(self.end),
            self.subnet
        )
    }
}

/// The candidates for one address. A pool has at least one range, and all its ranges have one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    ranges: Vec<Range>,
    /// Routers in the prefix, from the parent's routes. They are never assigned.
    pub routers: Vec<IpAddr>,
    /// Usual address of a router, set if no router is known. It is never assigned.
    pub router_address: Option<IpAddr>,
    /// First and last addresses of the intervals in `ipam.exclude`. They are never assigned.
    pub excluded: Vec<(u128, u128)>,
    /// Suffix in the name of the round-robin file: `last_reserved_ip.<pointer>`.
    pub pointer: String,
}

/// The reason why ranges are not a valid pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// There is no range.
    #[error("must have at least one range")]
    Empty,
    /// The ranges have both families.
    #[error(
        "a set assigns one address, and has one family: move {first} and {other} into two sets"
    )]
    Mixed {
        /// Subnet of the first range.
        first: IpNetwork,
        /// Subnet of the other family.
        other: IpNetwork,
    },
    /// Two ranges contain the same address.
    #[error("{first} and {second} overlap; an address can be in one range only")]
    Overlap {
        /// One of the two ranges.
        first: Box<Range>,
        /// The other range.
        second: Box<Range>,
    },
}

impl Pool {
    /// Returns the pool of `ranges`, or an error if they are not a valid pool.
    pub fn new(ranges: Vec<Range>, pointer: String) -> Result<Self, PoolError> {
        let first = ranges.first().ok_or(PoolError::Empty)?;
        if let Some(other) = ranges.iter().find(|it| it.family() != first.family()) {
            return Err(PoolError::Mixed {
                first: first.subnet,
                other: other.subnet,
            });
        }
        overlap(&ranges, None)?;
        Ok(Self::of(ranges, pointer))
    }

    /// Returns the pool of one range.
    pub fn of_range(range: Range, pointer: String) -> Self {
        Self::of(vec![range], pointer)
    }

    fn of(ranges: Vec<Range>, pointer: String) -> Self {
        Self {
            ranges,
            routers: vec![],
            router_address: None,
            excluded: vec![],
            pointer,
        }
    }

    /// Returns another [`Self::pointer`], for a pool whose round-robin file has the address of another pool. The result
    /// is the pool's first address, so no other pool has it.
    pub fn own_pointer(&self) -> String {
        self.family().address(self.ranges[0].start).to_string()
    }

    /// Returns the address at `offset` from the pool's first address, counted over all ranges.
    pub fn at(&self, mut offset: u128) -> u128 {
        for range in &self.ranges {
            match offset.checked_sub(range.size()) {
                Some(rest) => offset = rest,
                None => return range.start + offset,
            }
        }
        // unreachable: an offset is smaller than the sum of all sizes
        self.ranges[0].start
    }

    /// Returns the ranges, in order.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Returns the address family.
    pub fn family(&self) -> Family {
        self.ranges[0].family()
    }

    /// Returns the range that contains `ip`.
    pub fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.ranges.iter().find(|range| range.contains(ip))
    }

    /// Returns the number of addresses in all ranges.
    pub fn size(&self) -> u128 {
        self.ranges
            .iter()
            .fold(0, |sum: u128, range| sum.saturating_add(range.size()))
    }

    /// Returns an error if a range of `self` and a range of `other` overlap.
    pub fn disjoint(&self, other: &Self) -> Result<(), PoolError> {
        overlap(&self.ranges, Some(&other.ranges))
    }
}

/// Returns an error if a range of `these` overlaps a range of `those`, or without `those`, another range of `these`.
fn overlap(these: &[Range], those: Option<&[Range]>) -> Result<(), PoolError> {
    for (index, first) in these.iter().enumerate() {
        let mut others = those.unwrap_or(&these[index + 1..]).iter();
        if let Some(second) = others.find(|second| first.overlaps(second)) {
            return Err(PoolError::Overlap {
                first: Box::new(first.clone()),
                second: Box::new(second.clone()),
            });
        }
    }
    Ok(())
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.ranges.iter().enumerate() {
            write!(f, "{}{range}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::cidr;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn range(subnet: &str) -> Range {
        Range::new(cidr(subnet).unwrap(), None, None, None).unwrap()
    }

    #[test]
    fn defaults_are_those_of_host_local() {
        let v4 = range("10.0.0.0/24");
        assert_eq!(v4.to_string(), "10.0.0.1-10.0.0.254 of 10.0.0.0/24");
        assert_eq!(v4.gateway, Some(ip("10.0.0.1")));
        let v6 = range("fd00::/64");
        assert_eq!(
            v6.to_string(),
            "fd00::1-fd00::ffff:ffff:ffff:ffff of fd00::/64"
        );
        assert_eq!(v6.size(), u128::from(u64::MAX));
        assert_eq!(range("::/0").size(), u128::MAX);
    }

    #[test]
    fn errors_are_reported_by_field() {
        let subnet = cidr("10.0.0.0/24").unwrap();
        let error = |start, end, gateway| {
            let error = Range::new(subnet, start, end, gateway).unwrap_err();
            format!("{}: {error}", error.field())
        };
        let outside = Some(ip("10.0.1.9"));
        assert_eq!(
            error(outside, None, None),
            "rangeStart: must be an address of the subnet 10.0.0.0/24"
        );
        assert_eq!(
            error(None, outside, None),
            "rangeEnd: must be an address of the subnet 10.0.0.0/24"
        );
        assert_eq!(
            error(Some(ip("10.0.0.9")), Some(ip("10.0.0.5")), None),
            "rangeEnd: must not be before rangeStart, 10.0.0.9"
        );
        assert_eq!(
            error(None, None, Some(ip("fd00::1"))),
            "gateway: must be an IPv4 address, as the subnet is"
        );
        for (subnet, message) in [
            (
                "10.0.0.5/24",
                "it has host bits set; the network is 10.0.0.0/24",
            ),
            (
                "fd00::1/64",
                "it has host bits set; the network is fd00::/64",
            ),
            (
                "10.0.0.0/31",
                "it is too small to assign addresses; the longest IPv4 prefix is /30",
            ),
            (
                "fd00::/127",
                "it is too small to assign addresses; the longest IPv6 prefix is /126",
            ),
            (
                "fd00::/128",
                "it is too small to assign addresses; the longest IPv6 prefix is /126",
            ),
        ] {
            let error = Range::new(cidr(subnet).unwrap(), None, None, None).unwrap_err();
            assert_eq!((error.field(), &*error.to_string()), ("subnet", message));
        }
    }

    #[test]
    fn a_pool_has_one_family_and_no_address_twice() {
        assert_eq!(Pool::new(vec![], "0".into()), Err(PoolError::Empty));
        let mixed = Pool::new(vec![range("10.0.0.0/24"), range("fd00::/64")], "0".into());
        assert!(matches!(mixed, Err(PoolError::Mixed { .. })));
        let nested = vec![range("10.0.0.0/16"), range("10.0.7.0/24")];
        assert!(matches!(
            Pool::new(nested, "0".into()),
            Err(PoolError::Overlap { .. })
        ));
        let a = Pool::new(vec![range("10.0.0.0/24"), range("10.0.1.0/24")], "0".into()).unwrap();
        let b = Pool::new(vec![range("10.0.2.0/24"), range("10.0.0.0/30")], "1".into()).unwrap();
        assert_eq!(
            a.disjoint(&b).unwrap_err().to_string(),
            "10.0.0.1-10.0.0.254 of 10.0.0.0/24 and 10.0.0.1-10.0.0.2 of 10.0.0.0/30 overlap; an \
             address can be in one range only"
        );
    }
}
