// SPDX-License-Identifier: Apache-2.0
//! Netdevs made on top of another: what a pod gets of a netdev that stays on the host.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What kind of child, and how it gets its frames. On one parent there are macvlan children
/// or ipvlan children, never both: each takes the parent's receive handler
/// (`netdev_rx_handler_register()`, `net/core/dev.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", content = "mode", rename_all = "lowercase")]
pub enum Child {
    /// Has a hardware address of its own.
    Macvlan(MacvlanMode),
    /// Has its parent's hardware address, and gets what is for its IP addresses.
    Ipvlan(IpvlanMode),
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
        ] {
            assert_eq!(serde_json::to_string(&child).expect("JSON"), json);
            assert_eq!(serde_json::from_str::<Child>(json).expect("a child"), child);
            assert_eq!(child.to_string(), words);
        }
    }
}
