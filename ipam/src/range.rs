// SPDX-License-Identifier: Apache-2.0
//! Ranges of addresses to give out, with host-local's meaning and defaults.
//!
//! A [`Pool`] is what one address is given from: a range set of the configuration, or one
//! prefix of the parent.

use crate::address::{Family, number};
use ipnetwork::IpNetwork;
use std::{fmt, net::IpAddr};

/// One range, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The network it is part of.
    pub subnet: IpNetwork,
    /// Its first address.
    pub start: u128,
    /// Its last address.
    pub end: u128,
    /// Told in the result, never given out.
    pub gateway: Option<IpAddr>,
}

/// Why a range cannot be. The text says what the field has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// `10.0.0.5/24`
    #[error("it has host bits set; the network is {network}/{length}")]
    HostBits {
        /// What it would be.
        network: IpAddr,
        /// Its prefix length.
        length: u8,
    },
    /// `/31`, `/32`, `/127`, `/128`
    #[error(
        "it is too small, no address is left to give out; the longest {family} prefix is /{longest}"
    )]
    TooSmall {
        /// Its family.
        family: Family,
        /// [`Family::longest_prefix`]
        longest: u8,
    },
    /// `rangeStart` outside the subnet.
    #[error("must be an address of the subnet {0}")]
    StartOutside(IpNetwork),
    /// `rangeEnd` outside the subnet.
    #[error("must be an address of the subnet {0}")]
    EndOutside(IpNetwork),
    /// `rangeEnd` before `rangeStart`
    #[error("must not be before rangeStart, {0}")]
    Reversed(IpAddr),
    /// `gateway` of the other family.
    #[error("must be an {0} address, as the subnet is")]
    GatewayFamily(Family),
}

impl RangeError {
    /// The field that is wrong.
    pub fn field(&self) -> &'static str {
        match self {
            Self::HostBits { .. } | Self::TooSmall { .. } => "subnet",
            Self::StartOutside(_) => "rangeStart",
            Self::EndOutside(_) | Self::Reversed(_) => "rangeEnd",
            Self::GatewayFamily(_) => "gateway",
        }
    }
}

impl Range {
    /// The addresses from `start` (else the first after the network's) to `end` (else the
    /// last, before the broadcast address) of `subnet`; `gateway` is the subnet's first
    /// address unless it is told. A gateway outside the subnet is taken, as host-local does:
    /// a link-local one, or one that the next plugin makes reachable.
    pub fn new(
        subnet: IpNetwork,
        start: Option<IpAddr>,
        end: Option<IpAddr>,
        gateway: Option<IpAddr>,
    ) -> Result<Self, RangeError> {
        let family = Family::of(subnet.ip());
        let mut range = Self::of_prefix(subnet)?;
        range.gateway = Some(family.address(range.start));
        if let Some(start) = start {
            if !subnet.contains(start) {
                return Err(RangeError::StartOutside(subnet));
            }
            range.start = number(start);
        }
        if let Some(end) = end {
            if !subnet.contains(end) {
                return Err(RangeError::EndOutside(subnet));
            }
            range.end = number(end);
        }
        if range.end < range.start {
            return Err(RangeError::Reversed(family.address(range.start)));
        }
        if let Some(gateway) = gateway {
            if Family::of(gateway) != family {
                return Err(RangeError::GatewayFamily(family));
            }
            range.gateway = Some(gateway);
        }
        Ok(range)
    }

    /// All of `subnet`, without a gateway.
    pub fn of_prefix(subnet: IpNetwork) -> Result<Self, RangeError> {
        let family = Family::of(subnet.ip());
        if subnet.prefix() > family.longest_prefix() {
            return Err(RangeError::TooSmall {
                family,
                longest: family.longest_prefix(),
            });
        }
        if subnet.ip() != subnet.network() {
            return Err(RangeError::HostBits {
                network: subnet.network(),
                length: subnet.prefix(),
            });
        }
        let last = number(subnet.broadcast());
        Ok(Self {
            subnet,
            start: number(subnet.network()) + 1,
            end: match family {
                Family::V4 => last - 1,
                Family::V6 => last,
            },
            gateway: None,
        })
    }

    /// IPv4 or IPv6.
    pub fn family(&self) -> Family {
        Family::of(self.subnet.ip())
    }

    /// Whether `ip` is one of its addresses.
    pub fn contains(&self, ip: IpAddr) -> bool {
        Family::of(ip) == self.family() && (self.start..=self.end).contains(&number(ip))
    }

    /// How many addresses it has.
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

/// What one address is given from: ranges of one family, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    ranges: Vec<Range>,
    /// Routers besides the ranges' gateways: never given out.
    pub routers: Vec<IpAddr>,
    /// Where a router usually is, if none is known: never given out.
    pub router_place: Option<IpAddr>,
    /// The name of its round robin: `last_reserved_ip.<pointer>`.
    pub pointer: String,
}

/// Why ranges make no pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// None.
    #[error("must have at least one range")]
    Empty,
    /// IPv4 and IPv6.
    #[error(
        "one address is given from each set, so that a set has one family: {first} and {other} \
         belong into two sets"
    )]
    Mixed {
        /// A subnet.
        first: IpNetwork,
        /// One of the other family.
        other: IpNetwork,
    },
    /// An address is in two ranges.
    #[error("{first} and {second} overlap; an address can be in one range only")]
    Overlap {
        /// A range.
        first: Box<Range>,
        /// One that shares addresses with it.
        second: Box<Range>,
    },
}

impl Pool {
    /// Checks that one address can be given from `ranges`.
    pub fn new(ranges: Vec<Range>, pointer: String) -> Result<Self, PoolError> {
        let first = ranges.first().ok_or(PoolError::Empty)?;
        if let Some(other) = ranges.iter().find(|it| it.family() != first.family()) {
            return Err(PoolError::Mixed {
                first: first.subnet,
                other: other.subnet,
            });
        }
        overlap(&ranges, None)?;
        Ok(Self {
            ranges,
            routers: vec![],
            router_place: None,
            pointer,
        })
    }

    /// The name of its round robin where [`Self::pointer`] is another pool's: its first address, which no other pool has.
    pub fn own_pointer(&self) -> String {
        let first = self.family().address(self.ranges[0].start);
        first.to_string()
    }

    /// The address at `offset` from the first one, over all ranges.
    pub fn at(&self, mut offset: u128) -> u128 {
        for range in &self.ranges {
            match offset.checked_sub(range.size()) {
                Some(rest) => offset = rest,
                None => return range.start + offset,
            }
        }
        // an offset is less than the sum of all sizes
        self.ranges[0].start
    }

    /// Its ranges, in order.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// IPv4 or IPv6.
    pub fn family(&self) -> Family {
        self.ranges[0].family()
    }

    /// The range that `ip` is in.
    pub fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.ranges.iter().find(|range| range.contains(ip))
    }

    /// How many addresses its ranges have.
    pub fn size(&self) -> u128 {
        self.ranges
            .iter()
            .fold(0, |sum: u128, range| sum.saturating_add(range.size()))
    }

    /// Finds a range of `self` and one of `other` that share addresses.
    pub fn disjoint(&self, other: &Self) -> Result<(), PoolError> {
        overlap(&self.ranges, Some(&other.ranges))
    }
}

/// Finds two ranges that share addresses: of `these`, or of `these` and `those`.
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
    fn what_is_wrong_is_told_by_its_field() {
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
        for (subnet, said) in [
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
                "it is too small, no address is left to give out; the longest IPv4 prefix is /30",
            ),
            (
                "fd00::/127",
                "it is too small, no address is left to give out; the longest IPv6 prefix is /126",
            ),
            (
                "fd00::/128",
                "it is too small, no address is left to give out; the longest IPv6 prefix is /126",
            ),
        ] {
            let error = Range::new(cidr(subnet).unwrap(), None, None, None).unwrap_err();
            assert_eq!((error.field(), &*error.to_string()), ("subnet", said));
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
