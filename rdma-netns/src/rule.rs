//! Routing rules: which table the packets of one source look in.

use serde::{Deserialize, Serialize};
use std::{fmt, net::IpAddr};

/// A rule that selects by source alone and leads to a table (`FR_ACT_TO_TBL`,
/// `include/uapi/linux/fib_rules.h`). It belongs to a namespace, not to a netdev: it stays
/// when the netdev with the source address goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rule {
    /// Source, network address.
    pub from: IpAddr,
    /// Length of the source's prefix, bits; not 0.
    pub prefix: u8,
    /// The table to look in.
    pub table: u32,
    /// Order among the rules of one family, the lowest first (`FRA_PRIORITY`): the local table
    /// has 0, main 32766, default 32767.
    pub priority: u32,
}

/// As `ip rule add` takes it: `from 10.0.0.5/32 lookup 1000 priority 100`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            from,
            prefix,
            table,
            priority,
        } = self;
        write!(f, "from {from}/{prefix} lookup {table} priority {priority}")
    }
}
