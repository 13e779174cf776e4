// SPDX-License-Identifier: Apache-2.0
//! Routing rules, by which the kernel selects the table for a packet.

use crate::link::contains;
use serde::{Deserialize, Serialize};
use std::{fmt, net::IpAddr};

/// A rule that selects by source, and optionally by destination, and leads to a table (`FR_ACT_TO_TBL`,
/// `include/uapi/linux/fib_rules.h`). A rule belongs to a namespace, and not to a netdev: when the netdev with the
/// source address leaves the namespace, the rule remains.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rule {
    /// Network address of the source.
    pub from: IpAddr,
    /// Length of the source's prefix, bits. Never 0.
    pub prefix: u8,
    /// Network address of the destination, and length of its prefix in bits. `None`: the rule applies to all
    /// destinations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<(IpAddr, u8)>,
    /// Table to which the rule leads.
    pub table: u32,
    /// Order among the rules of one family: the kernel evaluates the lowest number first (`FRA_PRIORITY`). The rule of
    /// the local table has priority 0, the rule of main 32766, the rule of default 32767.
    pub priority: u32,
}

/// A rule that is not limited to a source or a netdev, except to the incoming netdev `lo`. So the kernel can use the
/// rule's table for packets that the namespace itself sends, from any source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GeneralRule {
    /// Network address of the destination. All zeros with prefix 0 match every address of the family.
    pub to: IpAddr,
    /// Length of the destination's prefix, bits.
    #[serde(default)]
    pub prefix: u8,
    /// Table to which the rule leads.
    pub table: u32,
    /// The rule ignores routes whose prefix is at most this long, bits (`suppress_prefixlength`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suppressed: Option<u8>,
    /// True if the rule is inverted, or has further selectors, such as a mark or a port. The rule then applies only to
    /// some packets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub conditional: bool,
}

impl Rule {
    /// Returns true if the rule selects all packets from `address`.
    pub fn selects(&self, address: IpAddr) -> bool {
        self.to.is_none() && contains(self.from, self.prefix, address)
    }
}

/// Formats the rule as arguments of `ip rule add`: `from 10.0.0.5/32 lookup 1000 priority 100`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            from,
            prefix,
            to,
            table,
            priority,
        } = self;
        write!(f, "from {from}/{prefix} ")?;
        if let Some((to, prefix)) = to {
            write!(f, "to {to}/{prefix} ")?;
        }
        write!(f, "lookup {table} priority {priority}")
    }
}
