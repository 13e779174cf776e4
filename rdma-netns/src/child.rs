// SPDX-License-Identifier: Apache-2.0
//! Netdevs made on top of another: what a pod gets of a netdev that stays on the host.

use crate::{IpoibMode, Pkey};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What kind of child, and how it gets its frames. On one parent there are macvlan children
/// or ipvlan children, never both: each takes the parent's receive handler
/// (`netdev_rx_handler_register()`, `net/core/dev.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub enum Child {
    /// Has a hardware address of its own.
    Macvlan(MacvlanMode),
    /// Has its parent's hardware address, and gets what is for its IP addresses.
    Ipvlan(IpvlanMode),
    /// Of an IPoIB netdev: has a queue pair of its own, and the parent's GID. One parent can have several in one
    /// partition (`is_child_unique()`, `drivers/infiniband/ulp/ipoib/ipoib_vlan.c`).
    Ipoib {
        /// The partition, which can be another one than the parent's.
        pkey: Pkey,
        /// How it sends.
        mode: IpoibMode,
    },
}

/// As a record has it.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Written {
    Macvlan { mode: MacvlanMode },
    Ipvlan { mode: IpvlanMode },
    Ipoib { mode: IpoibMode, pkey: Pkey },
}

impl From<Written> for Child {
    fn from(written: Written) -> Self {
        match written {
            Written::Macvlan { mode } => Self::Macvlan(mode),
            Written::Ipvlan { mode } => Self::Ipvlan(mode),
            Written::Ipoib { mode, pkey } => Self::Ipoib { pkey, mode },
        }
    }
}

impl From<Child> for Written {
    fn from(child: Child) -> Self {
        match child {
            Child::Macvlan(mode) => Self::Macvlan { mode },
            Child::Ipvlan(mode) => Self::Ipvlan { mode },
            Child::Ipoib { pkey, mode } => Self::Ipoib { mode, pkey },
        }
    }
}

/// How macvlan children of one parent reach each other (`enum macvlan_mode`,
/// `include/uapi/linux/if_link.h`). None of them reaches the parent itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MacvlanMode {
    /// Directly.
    Bridge,
    /// Not at all.
    Private,
    /// By a switch that sends frames back.
    Vepa,
    /// There is one child only, which has the parent's hardware address.
    Passthru,
}

/// On which layer an ipvlan child works (`enum ipvlan_mode`,
/// `include/uapi/linux/if_link.h`). All children of one parent have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpvlanMode {
    /// The child does ARP and neighbour discovery.
    L2,
    /// The parent's namespace routes; there is no ARP, broadcast or multicast.
    L3,
    /// As `L3`, with netfilter of the parent's namespace.
    L3s,
}

impl Child {
    /// The kernel's name of the kind (`IFLA_INFO_KIND`).
    pub fn kind(self) -> &'static str {
        match self {
            Self::Macvlan(_) => "macvlan",
            Self::Ipvlan(_) => "ipvlan",
            Self::Ipoib { .. } => "ipoib",
        }
    }
}

/// As `ip link` takes it: `macvlan mode bridge`.
impl fmt::Display for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self {
            Self::Macvlan(MacvlanMode::Bridge) => "bridge",
            Self::Macvlan(MacvlanMode::Private) => "private",
            Self::Macvlan(MacvlanMode::Vepa) => "vepa",
            Self::Macvlan(MacvlanMode::Passthru) => "passthru",
            Self::Ipvlan(IpvlanMode::L2) => "l2",
            Self::Ipvlan(IpvlanMode::L3) => "l3",
            Self::Ipvlan(IpvlanMode::L3s) => "l3s",
            Self::Ipoib { pkey, mode } => {
                return write!(f, "ipoib pkey {pkey} mode {}", mode.name());
            }
        };
        write!(f, "{} mode {mode}", self.kind())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_as_in_a_configuration_and_as_in_ip() {
        for (child, json, words) in [
            (
                Child::Macvlan(MacvlanMode::Bridge),
                r#"{"type":"macvlan","mode":"bridge"}"#,
                "macvlan mode bridge",
            ),
            (
                Child::Ipvlan(IpvlanMode::L3s),
                r#"{"type":"ipvlan","mode":"l3s"}"#,
                "ipvlan mode l3s",
            ),
            (
                Child::Ipoib {
                    pkey: Pkey(0x8001),
                    mode: IpoibMode::Connected,
                },
                r#"{"type":"ipoib","mode":"connected","pkey":"0x8001"}"#,
                "ipoib pkey 0x8001 mode connected",
            ),
        ] {
            assert_eq!(serde_json::to_string(&child).expect("JSON"), json);
            assert_eq!(serde_json::from_str::<Child>(json).expect("a child"), child);
            assert_eq!(child.to_string(), words);
        }
    }
}
