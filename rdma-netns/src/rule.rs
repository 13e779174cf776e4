// SPDX-License-Identifier: Apache-2.0
//! Routing rules: tables for the packets of one source.

use crate::link::contains;
use serde::{Deserialize, Serialize};
use std::{fmt, net::IpAddr};

/// A rule that selects by source, and optionally by destination, and leads to a table (`FR_ACT_TO_TBL`,
/// `include/uapi/linux/fib_rules.h`). A rule belongs to a namespace and not to a netdev: it remains when the netdev
/// with the source address leaves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rule {
    /// Source, network address.
    pub from: IpAddr,
    /// Length of the source's prefix, bits; not 0.
    pub prefix: u8,
    /// Destination: network address, and length of its prefix in bits; `None`: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<(IpAddr, u8)>,
    /// Table of the rule.
    pub table: u32,
    /// Order among the rules of one family, the lowest first (`FRA_PRIORITY`). The rule of the local table has priority
    /// 0, the rule of main 32766, the rule of default 32767.
    pub priority: u32,
}

/// A rule that applies to packets of all sources and netdevs. Its table therefore has routes for the namespace's own
/// packets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GeneralRule {
    /// Destination, network address; all zeros with prefix 0 for every address of the family.
    pub to: IpAddr,
    /// Length of the destination's prefix, bits.
    #[serde(default)]
    pub prefix: u8,
    /// Table of the rule.
    pub table: u32,
    /// Largest prefix length of routes that the rule ignores (`suppress_prefixlength`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suppressed: Option<u8>,
    /// True if the rule has further selectors, such as a mark or a port, so that it applies to some packets only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub conditional: bool,
}

impl Rule {
    /// Returns true if the rule selects all packets from `address`.
    pub fn selects(&self, address: IpAddr) -> bool {
        self.to.is_none() && contains(self.from, self.prefix, address)
    }
}

/// Formats the rule for `ip rule add`: `from 10.0.0.5/32 lookup 1000 priority 100`.
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
