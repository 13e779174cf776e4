// SPDX-License-Identifier: Apache-2.0
//! Field `child`: the netdev that a pod gets on a shared netdev.

use conf_reader::{Field, Wrong};
use rdma_netns::{
    IpoibMode,
    child::{IpvlanMode, MacvlanMode},
};
use serde::{Deserialize, Serialize};

/// Value of `child`. Without this field, the shared netdev determines the kind of child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ChildConf {
    /// A macvlan child of an Ethernet netdev.
    Macvlan {
        /// Mode: `bridge`, `private` or `vepa`.
        mode: MacvlanMode,
    },
    /// An ipvlan child of an Ethernet netdev.
    Ipvlan {
        /// Mode: `l2`.
        mode: IpvlanMode,
    },
    /// A child of an IPoIB netdev. Its partition is `pkey`, if the configuration has `pkey`.
    Ipoib {
        /// Send mode. `None`: the send mode of the shared netdev.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<IpoibMode>,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Macvlan,
    Ipvlan,
    Ipoib,
}

/// Macvlan modes that a configuration can name. [`parse`] refuses `passthru`.
const MACVLAN_MODES: [(&str, MacvlanMode); 4] = [
    ("bridge", MacvlanMode::Bridge),
    ("private", MacvlanMode::Private),
    ("vepa", MacvlanMode::Vepa),
    ("passthru", MacvlanMode::Passthru),
];

const IPVLAN_MODES: [(&str, IpvlanMode); 3] = [
    ("l2", IpvlanMode::L2),
    ("l3", IpvlanMode::L3),
    ("l3s", IpvlanMode::L3s),
];

/// Reads `child` of `file`. The default mode is `bridge` for a macvlan, and `l2` for an ipvlan.
///
/// # Errors
/// A value is wrong, or pods cannot share the netdev or use RDMA with such a child.
pub fn parse(file: &Field<'_>) -> Result<Option<ChildConf>, Wrong> {
    let child = file.object("child")?;
    let child = match child.get("type")? {
        None if !child.at("mode").is_there() => return Ok(None),
        None | Some(Kind::Macvlan) => match child.choice("mode", &MACVLAN_MODES)? {
            Some(MacvlanMode::Passthru) => {
                return Err(child.at("mode").unsupported(
                    "a passthru macvlan allows only one child per netdev, so pods cannot share the netdev; use \
                     \"bridge\", or set the network's mode to \"move\"",
                ));
            }
            mode => ChildConf::Macvlan {
                mode: mode.unwrap_or(MacvlanMode::Bridge),
            },
        },
        Some(Kind::Ipvlan) => match child.choice("mode", &IPVLAN_MODES)? {
            None | Some(IpvlanMode::L2) => ChildConf::Ipvlan {
                mode: IpvlanMode::L2,
            },
            Some(_) => {
                return Err(child.at("mode").unsupported(
                    "such a child does no neighbour discovery (NOARP), so RDMA packets would go to the child's own \
                     hardware address (docs/dev/decisions/0030-child-netdevs.md); use \"l2\"",
                ));
            }
        },
        Some(Kind::Ipoib) => ChildConf::Ipoib {
            mode: child.get("mode")?,
        },
    };
    Ok(Some(child))
}
