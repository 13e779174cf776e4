// SPDX-License-Identifier: Apache-2.0
//! Fields `rangeStart`, `rangeEnd`, `perNode` and `exclude`: which part of a prefix pods get.
//!
//! With `from: parent`, each rail of each node can have another prefix. A bound is an [`Offset`] in the prefix, so all
//! nodes can have the same configuration.
//!
//! `perNode` divides the part between the bounds into blocks of `perNode` addresses. The number of a node's block is
//! the offset of the node's own address in the prefix. Two nodes have different addresses, so they have different
//! blocks without a coordinator. A hash of the node's name could give one block to two nodes. An address with another
//! prefix length does not count, because a virtual address (VRRP: `/32`) moves between nodes.

use crate::{
    address::{Family, cidr, number, plain},
    range::Range,
};
use ipnetwork::IpNetwork;
use std::{fmt, net::IpAddr};

/// An offset from the beginning or the end of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offset {
    /// `+50`: the prefix's first address, which is the network address, plus 50.
    First(u128),
    /// `-6`: the prefix's last address, which is the broadcast address of IPv4, minus 6.
    Last(u128),
}

impl Offset {
    /// Parses a sign and a number. The number is decimal, or hexadecimal after `0x`.
    pub fn parse(text: &str) -> Option<Self> {
        let (sign, digits) = text.split_at_checked(1)?;
        let (digits, radix) = match digits.strip_prefix("0x") {
            Some(digits) => (digits, 16),
            None => (digits, 10),
        };
        // checks digits, because the number parser would accept a second sign
        let number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = number.then(|| u128::from_str_radix(digits, radix).ok())??;
        match sign {
            "+" => Some(Self::First(number)),
            "-" => Some(Self::Last(number)),
            _ => None,
        }
    }

    /// Returns the number of the address at this offset in `prefix`. Returns `None` if the offset is outside the
    /// prefix.
    pub fn in_prefix(self, prefix: IpNetwork) -> Option<u128> {
        let (first, last) = (number(prefix.network()), number(prefix.broadcast()));
        let address = match self {
            Self::First(offset) => first.checked_add(offset),
            Self::Last(offset) => last.checked_sub(offset),
        };
        address.filter(|it| (first..=last).contains(it))
    }

    /// Returns true if this offset is after `other` in every prefix.
    fn is_after(self, other: Self) -> bool {
        match (self, other) {
            (Self::First(this), Self::First(other)) => this > other,
            (Self::Last(this), Self::Last(other)) => this < other,
            // the order depends on the length of the prefix
            _ => false,
        }
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First(offset) => write!(f, "+{offset}"),
            Self::Last(offset) => write!(f, "-{offset}"),
        }
    }
}

/// An element of `exclude`, as its first and its last address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excluded {
    /// Offsets, such as `+9` or `+1..+49`.
    Offsets(Offset, Offset),
    /// Addresses, such as `10.0.0.9`, `10.0.0.1..10.0.0.49` or `10.0.0.0/26`.
    Addresses(IpAddr, IpAddr),
}

/// Text of the error for an element of `exclude`.
pub const EXCLUDED: &str = "must be an address, a prefix, an offset such as +9, or two addresses or offsets in order, \
                            such as +1..+49";

impl Excluded {
    /// Parses an element of `exclude`. Returns `None` if the text is malformed, or if its end is before its start.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(prefix) = cidr(text) {
            return Some(Self::Addresses(prefix.network(), prefix.broadcast()));
        }
        let (start, end) = text.split_once("..").unwrap_or((text, text));
        match (Offset::parse(start), Offset::parse(end)) {
            (Some(start), Some(end)) => (!start.is_after(end)).then_some(Self::Offsets(start, end)),
            _ => {
                let (start, end) = (plain(start)?, plain(end)?);
                let is_one = Family::of(start) == Family::of(end) && start <= end;
                is_one.then_some(Self::Addresses(start, end))
            }
        }
    }
}

/// The bounds of one family's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Family.
    pub family: Family,
    /// Offset of `rangeStart`.
    pub start: Option<Offset>,
    /// Offset of `rangeEnd`.
    pub end: Option<Offset>,
    /// `perNode`: number of addresses of each node.
    pub per_node: Option<u32>,
    /// Elements of `exclude`. Addresses of the other family have no effect.
    pub excluded: Vec<Excluded>,
}

/// The reason why the bounds cannot be applied to a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoundsError {
    /// `rangeEnd` is before `rangeStart` in every prefix.
    #[error("must not be before rangeStart, {0}")]
    Reversed(Offset),
    /// The offset is outside the prefix.
    #[error("ipam.{field} {offset} is outside the prefix {prefix}")]
    Outside {
        /// Name of the field with the offset.
        field: &'static str,
        /// Offset.
        offset: Offset,
        /// Prefix.
        prefix: IpNetwork,
    },
    /// The end is before the start, because the prefix is short.
    #[error("ipam.{field}: in the prefix {prefix}, the end {end} is before the start {start}")]
    Crossed {
        /// Name of the field with the offsets.
        field: &'static str,
        /// First offset.
        start: Offset,
        /// Last offset.
        end: Offset,
        /// Prefix.
        prefix: IpNetwork,
    },
    /// The prefix is too small for the node's block.
    #[error(
        "its own address {own} is number {node} in the prefix {prefix}, and block {node} of ipam.perNode {size} ends \
         after {end}: lower ipam.perNode, or give the netdev a lower address"
    )]
    Block {
        /// Address of the netdev.
        own: IpAddr,
        /// Offset of `own`.
        node: u128,
        /// Value of `perNode`.
        size: u32,
        /// Prefix.
        prefix: IpNetwork,
        /// Last address that pods may get.
        end: IpAddr,
    },
    /// The netdev's own address is among the addresses that pods may get.
    #[error(
        "its own address {0} is among the addresses of pods: other nodes would give it to a pod while this node is off; \
         set ipam.rangeStart and ipam.rangeEnd so that it is outside, or add {0} to ipam.exclude"
    )]
    Own(IpAddr),
}

impl Bounds {
    /// Returns no bounds.
    pub fn none(family: Family) -> Self {
        Self {
            family,
            start: None,
            end: None,
            per_node: None,
            excluded: vec![],
        }
    }

    /// Checks the bounds as far as possible without a prefix.
    ///
    /// # Errors
    /// `rangeEnd` is before `rangeStart` in every prefix.
    pub fn checked(self) -> Result<Self, BoundsError> {
        match (self.start, self.end) {
            (Some(start), Some(end)) if start.is_after(end) => Err(BoundsError::Reversed(start)),
            _ => Ok(self),
        }
    }

    /// Reduces `range`, which is a whole prefix, to the bounds. Returns the excluded addresses in it. `own` are the
    /// addresses of the netdev that has the prefix. If there are bounds, these addresses must be outside them or
    /// excluded, on each node. Otherwise a node could assign another node's address to a pod.
    ///
    /// # Errors
    /// A bound is outside the prefix, the end is before the start, the node's block does not fit, or one of `own` is
    /// within `rangeStart` and `rangeEnd` and not excluded.
    pub fn cut(
        &self,
        range: &mut Range,
        own: &[IpNetwork],
    ) -> Result<Vec<(u128, u128)>, BoundsError> {
        let prefix = range.subnet;
        if let Some(start) = self.start {
            range.start = place("rangeStart", start, prefix)?;
        }
        if let Some(end) = self.end {
            range.end = place("rangeEnd", end, prefix)?;
        }
        if range.end < range.start {
            return Err(BoundsError::Crossed {
                field: "rangeEnd",
                start: self.start.unwrap_or(Offset::First(0)),
                end: self.end.unwrap_or(Offset::Last(0)),
                prefix,
            });
        }
        let excluded = excluded(&self.excluded, prefix)?;
        let is_excluded = |ip: &IpAddr| {
            let within = |(first, last): &(u128, u128)| (*first..=*last).contains(&number(*ip));
            excluded.iter().any(within)
        };
        let mut inside = own.iter().map(IpNetwork::ip);
        let inside = inside.find(|ip| range.contains(*ip) && !is_excluded(ip));
        let is_bounded = self.start.is_some() || self.end.is_some() || self.per_node.is_some();
        if let Some(ip) = inside.filter(|_| is_bounded) {
            return Err(BoundsError::Own(ip));
        }
        // takes the lowest address, and not the first: each added IPv6 address changes the kernel's order
        let in_prefix = own.iter().filter(|it| prefix.contains(it.ip()));
        let lowest = in_prefix.min_by_key(|it| (it.prefix() != prefix.prefix(), it.ip()));
        if let Some((size, own)) = self.per_node.zip(lowest.map(IpNetwork::ip)) {
            let node = number(own) - number(prefix.network());
            let block = node.checked_mul(size.into());
            let start = block.and_then(|block| range.start.checked_add(block));
            let end = start.and_then(|start| start.checked_add(u128::from(size) - 1));
            let Some((start, end)) = start.zip(end).filter(|(_, end)| *end <= range.end) else {
                return Err(BoundsError::Block {
                    own,
                    node,
                    size,
                    prefix,
                    end: self.family.address(range.end),
                });
            };
            (range.start, range.end) = (start, end);
        }
        Ok(excluded)
    }
}

/// Returns the first and the last number of each element of `excluded` that applies to the family of `prefix`.
///
/// # Errors
/// An offset is outside the prefix, or the end of an element is before its start.
pub fn excluded(
    excluded: &[Excluded],
    prefix: IpNetwork,
) -> Result<Vec<(u128, u128)>, BoundsError> {
    let family = Family::of(prefix.ip());
    let mut numbers = vec![];
    for element in excluded {
        match *element {
            Excluded::Offsets(start, end) => {
                let field = "exclude";
                let (first, last) = (place(field, start, prefix)?, place(field, end, prefix)?);
                if last < first {
                    return Err(BoundsError::Crossed {
                        field,
                        start,
                        end,
                        prefix,
                    });
                }
                numbers.push((first, last));
            }
            Excluded::Addresses(first, last) if Family::of(first) == family => {
                numbers.push((number(first), number(last)));
            }
            Excluded::Addresses(..) => {}
        }
    }
    Ok(numbers)
}

fn place(field: &'static str, offset: Offset, prefix: IpNetwork) -> Result<u128, BoundsError> {
    offset.in_prefix(prefix).ok_or(BoundsError::Outside {
        field,
        offset,
        prefix,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offset(text: &str) -> Offset {
        Offset::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn an_offset_counts_from_either_end() {
        for (text, prefix, ip) in [
            ("+0", "10.1.0.0/24", "10.1.0.0"),
            ("+50", "10.1.0.0/24", "10.1.0.50"),
            ("+300", "10.1.0.0/16", "10.1.1.44"),
            ("-0", "10.1.0.0/24", "10.1.0.255"),
            ("-6", "10.1.0.0/24", "10.1.0.249"),
            ("+0x1000", "fd00:1::/64", "fd00:1::1000"),
            ("-1", "fd00:1::/64", "fd00:1::ffff:ffff:ffff:fffe"),
            ("-0", "::/0", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            let prefix = cidr(prefix).unwrap();
            let place = offset(text).in_prefix(prefix);
            let expected = number(ip.parse().unwrap());
            assert_eq!(place, Some(expected), "{text} of {prefix}");
        }
        for text in ["+256", "-256", "+0xffffffffffffffffffffffffffffffff"] {
            let prefix = cidr("10.1.0.0/24").unwrap();
            assert_eq!(offset(text).in_prefix(prefix), None, "{text}");
        }
    }

    #[test]
    fn an_offset_has_one_sign_and_one_number() {
        for text in [
            "",
            "+",
            "-",
            "50",
            "++5",
            "+-5",
            "-+5",
            "+0x",
            "+0x+5",
            "+5a",
            "+ 5",
            "+5 ",
            "+1.5",
            "+0X5",
            "\u{2212}6",
            "+0xg",
            "+340282366920938463463374607431768211456",
        ] {
            assert_eq!(Offset::parse(text), None, "{text:?}");
        }
    }

    /// The test tries every pair of bounds in prefixes of length 26, 28 and 30. Each pair is refused, or leaves exactly
    /// the addresses between the bounds. The netdev's own address is never among these addresses.
    #[test]
    fn bounds_leave_what_is_between_them() {
        let all = |size: u128| {
            let first = (0..=size).map(Offset::First);
            first.chain((0..=size).map(Offset::Last))
        };
        for length in [26, 28, 30] {
            let prefix = cidr(&format!("10.1.0.64/{length}")).unwrap();
            let (first, size) = (number(prefix.network()), 1 << (32 - length));
            let own = Family::V4.address(first + size / 2);
            let owned = IpNetwork::new(own, length).unwrap();
            for (start, end) in all(size).flat_map(|it| all(size).map(move |end| (it, end))) {
                let bounds = Bounds {
                    start: Some(start),
                    end: Some(end),
                    ..Bounds::none(Family::V4)
                };
                let places = (start.in_prefix(prefix), end.in_prefix(prefix));
                let Ok(bounds) = bounds.checked() else {
                    let (start, end) = places;
                    assert!(start.is_none() || end.is_none() || start > end);
                    continue;
                };
                let mut range = Range::of_prefix(prefix).unwrap();
                let cut = bounds.cut(&mut range, &[owned]);
                let said = format!("{start}..{end} of {prefix}: {cut:?}");
                match places {
                    (Some(start), Some(end)) if start <= end => {
                        assert_eq!((range.start, range.end), (start, end), "{said}");
                        let is_own = (start..=end).contains(&number(own));
                        assert_eq!(cut == Err(BoundsError::Own(own)), is_own, "{said}");
                        assert_eq!(cut == Ok(vec![]), !is_own, "{said}");
                    }
                    (Some(_), Some(_)) => {
                        assert!(matches!(cut, Err(BoundsError::Crossed { .. })), "{said}");
                    }
                    _ => assert!(matches!(cut, Err(BoundsError::Outside { .. })), "{said}"),
                }
            }
        }
    }

    /// Nodes with different addresses and the same configuration never assign the same address, and never assign a
    /// node's address.
    #[test]
    fn blocks_of_different_nodes_are_disjoint() {
        let prefix = cidr("10.1.0.0/22").unwrap();
        let node = |own: u128, size| {
            let bounds = Bounds {
                start: Some(offset("+32")),
                end: Some(offset("-2")),
                per_node: Some(size),
                ..Bounds::none(Family::V4)
            };
            let mut range = Range::of_prefix(prefix).unwrap();
            let own = Family::V4.address(number(prefix.network()) + own);
            let own = IpNetwork::new(own, prefix.prefix()).unwrap();
            let cut = bounds.cut(&mut range, &[own]);
            cut.map(|_| (range.start, range.end))
        };
        for size in [1, 3, 16, 32, 33, 100] {
            let mut given = std::collections::BTreeSet::new();
            for own in 1..32 {
                match node(own, size) {
                    Ok((start, end)) => {
                        assert_eq!(end - start + 1, u128::from(size));
                        for ip in start..=end {
                            assert!(given.insert(ip), "node {own} and another one give {ip}");
                            assert!(ip >= number(prefix.network()) + 32);
                        }
                    }
                    Err(BoundsError::Block { node, .. }) => assert_eq!(node, own),
                    other => panic!("{other:?}"),
                }
            }
            assert!(!given.is_empty());
        }
        assert!(matches!(node(32, 1), Err(BoundsError::Own(_))));
    }

    #[test]
    fn an_excluded_own_address_is_in_order() {
        let prefix = cidr("10.1.0.0/24").unwrap();
        let own = cidr("10.1.0.77/24").unwrap();
        for (element, numbers) in [
            ("+77", (77, 77)),
            ("+70..+80", (70, 80)),
            ("+70..-100", (70, 155)),
            ("10.1.0.77", (77, 77)),
            ("10.1.0.64/28", (64, 79)),
            ("10.1.0.70..10.1.0.77", (70, 77)),
        ] {
            let bounds = Bounds {
                start: Some(offset("+50")),
                excluded: vec![Excluded::parse(element).expect(element)],
                ..Bounds::none(Family::V4)
            };
            let mut range = Range::of_prefix(prefix).unwrap();
            let first = number(prefix.network());
            let expected = vec![(first + numbers.0, first + numbers.1)];
            let cut = bounds.cut(&mut range, &[own]);
            assert_eq!(cut, Ok(expected), "{element}");
        }
    }

    #[test]
    fn elements_of_exclude_are_read_strictly() {
        for text in [
            "",
            "..",
            "+1..",
            "..+9",
            "+9..+1",
            "-1..-9",
            "+1..10.0.0.9",
            "10.0.0.9..10.0.0.1",
            "10.0.0.1..fd00::1",
            "10.0.0.0/33",
            "10.0.0.0/26..10.0.0.64/26",
            "+1...+9",
            "+1-+9",
            "::ffff:10.0.0.1",
        ] {
            assert_eq!(Excluded::parse(text), None, "{text:?}");
        }
    }
}
