// SPDX-License-Identifier: Apache-2.0
//! Child netdevs: netdevs of a pod on top of a netdev that stays on the host.

use crate::{IpoibMode, Pkey};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Kind of a child netdev. The kind determines how the child receives frames. One parent cannot have macvlan and ipvlan
/// children at once, because both kinds occupy the parent's receive handler (`netdev_rx_handler_register()`,
/// `net/core/dev.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Child {
    /// A macvlan. The child has its own hardware address, except in the mode `passthru`.
    Macvlan {
        /// Connectivity of the children of one parent.
        mode: MacvlanMode,
    },
    /// A child with its parent's hardware address. The child receives the packets for its own IP addresses.
    Ipvlan {
        /// Layer of the child.
        mode: IpvlanMode,
    },
    /// A child of an IPoIB netdev. The child has its own queue pair and the parent's GID. One parent can have several
    /// children in one partition (`is_child_unique()`, `drivers/infiniband/ulp/ipoib/ipoib_vlan.c`).
    Ipoib {
        /// Send mode.
        mode: IpoibMode,
        /// The child's partition, which can differ from the parent's partition.
        pkey: Pkey,
    },
}

/// Connectivity among the macvlan children of one parent (`enum macvlan_mode`, `include/uapi/linux/if_link.h`). No
/// child reaches the parent directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MacvlanMode {
    /// The children reach each other directly.
    Bridge,
    /// The children do not reach each other.
    Private,
    /// The children reach each other through an external switch that sends frames back to the port they came from.
    Vepa,
    /// The parent has a single child. The child has the parent's hardware address.
    Passthru,
    /// A mode or flags that a configuration cannot request. A pod with `NET_ADMIN` can set them.
    Other {
        /// The kernel's number (`IFLA_MACVLAN_MODE`). 16 is `source`: the child has a list of senders, and receives all
        /// frames from these senders.
        mode: u32,
        /// `MACVLAN_FLAG_*`. 2 is `nodst`: in mode 16 the kernel does not also deliver frames from the listed senders
        /// by destination address.
        flags: u16,
    },
}

/// Layer of an ipvlan child (`enum ipvlan_mode`, `include/uapi/linux/if_link.h`). All children of one parent have one
/// mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpvlanMode {
    /// The child resolves neighbours itself by ARP and neighbour discovery.
    L2,
    /// The parent's namespace routes the child's packets. The child has no ARP, broadcast or multicast.
    L3,
    /// Like `L3`. In addition, netfilter of the parent's namespace sees the packets.
    L3s,
    /// A mode or flags that a configuration cannot request. A pod with `NET_ADMIN` can set them.
    Other {
        /// The kernel's number (`IFLA_IPVLAN_MODE`).
        mode: u32,
        /// `IPVLAN_F_*`. 1 is `private`: the children do not reach each other. 2 is `vepa`.
        flags: u16,
    },
}

/// Modes and flags of macvlan and ipvlan: the kernel's number, and the name in `ip link`.
const MACVLAN_MODES: [(u32, &str); 5] = [
    (1, "private"),
    (2, "vepa"),
    (4, "bridge"),
    (8, "passthru"),
    (16, "source"),
];
const MACVLAN_FLAGS: [(u16, &str); 2] = [(1, "nopromisc"), (2, "nodst")];
const IPVLAN_MODES: [(u32, &str); 3] = [(0, "l2"), (1, "l3"), (2, "l3s")];
const IPVLAN_FLAGS: [(u16, &str); 2] = [(1, "private"), (2, "vepa")];

impl MacvlanMode {
    pub(crate) fn of(mode: u32, flags: u16) -> Self {
        let named = [Self::Private, Self::Vepa, Self::Bridge, Self::Passthru];
        let found = named.into_iter().find(|it| it.numbers() == (mode, flags));
        found.unwrap_or(Self::Other { mode, flags })
    }

    /// Returns the kernel's numbers of the mode and its flags.
    pub(crate) fn numbers(self) -> (u32, u16) {
        match self {
            Self::Private => (1, 0),
            Self::Vepa => (2, 0),
            Self::Bridge => (4, 0),
            Self::Passthru => (8, 0),
            Self::Other { mode, flags } => (mode, flags),
        }
    }
}

impl IpvlanMode {
    pub(crate) fn of(mode: u32, flags: u16) -> Self {
        let named = [Self::L2, Self::L3, Self::L3s];
        let found = named.into_iter().find(|it| it.numbers() == (mode, flags));
        found.unwrap_or(Self::Other { mode, flags })
    }

    /// Returns the kernel's numbers of the mode and its flags.
    pub(crate) fn numbers(self) -> (u32, u16) {
        match self {
            Self::L2 => (0, 0),
            Self::L3 => (1, 0),
            Self::L3s => (2, 0),
            Self::Other { mode, flags } => (mode, flags),
        }
    }
}

impl Child {
    /// Returns the kernel's name of the kind (`IFLA_INFO_KIND`).
    pub fn kind(self) -> &'static str {
        match self {
            Self::Macvlan { .. } => "macvlan",
            Self::Ipvlan { .. } => "ipvlan",
            Self::Ipoib { .. } => "ipoib",
        }
    }
}

/// Formats the child with the names of `ip link`, such as `macvlan mode bridge`. Formats unknown values as numbers.
impl fmt::Display for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((mode, flags), modes, names): (_, &[_], _) = match self {
            Self::Macvlan { mode } => (mode.numbers(), &MACVLAN_MODES, MACVLAN_FLAGS),
            Self::Ipvlan { mode } => (mode.numbers(), &IPVLAN_MODES, IPVLAN_FLAGS),
            Self::Ipoib { pkey, mode } => {
                return write!(f, "ipoib pkey {pkey} mode {}", mode.name());
            }
        };
        write!(f, "{} mode ", self.kind())?;
        match modes.iter().find(|(number, _)| *number == mode) {
            Some((_, name)) => f.write_str(name)?,
            None => write!(f, "{mode}")?,
        }
        let mut left = flags;
        for (flag, name) in names {
            if flags & flag != 0 {
                write!(f, " {name}")?;
                left &= !flag;
            }
        }
        match left {
            0 => Ok(()),
            left => write!(f, " flags {left}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_as_in_a_configuration_and_as_in_ip() {
        for (child, json, words) in [
            (
                Child::Macvlan {
                    mode: MacvlanMode::Bridge,
                },
                r#"{"type":"macvlan","mode":"bridge"}"#,
                "macvlan mode bridge",
            ),
            (
                Child::Ipvlan {
                    mode: IpvlanMode::L3s,
                },
                r#"{"type":"ipvlan","mode":"l3s"}"#,
                "ipvlan mode l3s",
            ),
            (
                Child::Macvlan {
                    mode: MacvlanMode::Other { mode: 16, flags: 2 },
                },
                r#"{"type":"macvlan","mode":{"other":{"mode":16,"flags":2}}}"#,
                "macvlan mode source nodst",
            ),
            (
                Child::Macvlan {
                    mode: MacvlanMode::Other { mode: 32, flags: 5 },
                },
                r#"{"type":"macvlan","mode":{"other":{"mode":32,"flags":5}}}"#,
                "macvlan mode 32 nopromisc flags 4",
            ),
            (
                Child::Ipvlan {
                    mode: IpvlanMode::Other { mode: 0, flags: 1 },
                },
                r#"{"type":"ipvlan","mode":{"other":{"mode":0,"flags":1}}}"#,
                "ipvlan mode l2 private",
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
