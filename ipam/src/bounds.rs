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
    /// Parses an element of `exclude`. Returns `None` if the text is malformed, if its end is before its start, or if
    /// the text is a prefix with host bits. The author of `10.1.0.5/16` may mean one address, and not 65536.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(prefix) = cidr(text) {
            let (first, last) = (prefix.network(), prefix.broadcast());
            return (prefix.ip() == first).then_some(Self::Addresses(first, last));
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
    /// One bound is set, and it is on the wrong side of the other bound's default.
    #[error(
        "ipam.{field} {offset} leaves no address in the prefix {prefix}: the default of ipam.{other} is {default}"
    )]
    Empty {
        /// Name of the field with the bound.
        field: &'static str,
        /// Bound.
        offset: Offset,
        /// Name of the missing field.
        other: &'static str,
        /// Default of the missing field in this prefix.
        default: Offset,
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
        let (first, last) = (number(prefix.network()), number(prefix.broadcast()));
        let default_start = Offset::First(range.start - first);
        let default_end = Offset::Last(last - range.end);
        if let Some(start) = self.start {
            range.start = place("rangeStart", start, prefix)?;
        }
        if let Some(end) = self.end {
            range.end = place("rangeEnd", end, prefix)?;
        }
        if range.end < range.start {
            return Err(match (self.start, self.end) {
                (Some(offset), None) => BoundsError::Empty {
                    field: "rangeStart",
                    offset,
                    other: "rangeEnd",
                    default: default_end,
                    prefix,
                },
                (None, Some(offset)) => BoundsError::Empty {
                    field: "rangeEnd",
                    offset,
                    other: "rangeStart",
                    default: default_start,
                    prefix,
                },
                (start, end) => BoundsError::Crossed {
                    field: "rangeEnd",
                    start: start.unwrap_or(default_start),
                    end: end.unwrap_or(default_end),
                    prefix,
                },
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
#[path = "bounds_tests.rs"]
mod tests;
