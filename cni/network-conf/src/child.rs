// SPDX-License-Identifier: Apache-2.0
//! `child`: the netdev that a pod gets on a shared netdev.

use cni_protocol::ConfError;
use conf_reader::Field;
use rdma_netns::{
    IpoibMode,
    child::{IpvlanMode, MacvlanMode},
};
use serde::{Deserialize, Serialize};

/// `child`. If it is missing, the shared netdev determines the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ChildConf {
    /// A macvlan child of an Ethernet netdev.
    Macvlan {
        /// `bridge`, `private` or `vepa`.
        mode: MacvlanMode,
    },
    /// An ipvlan child of an Ethernet netdev.
    Ipvlan {
        /// `l2`.
        mode: IpvlanMode,
    },
    /// A child of an IPoIB netdev, in the partition `pkey` if there is one.
    Ipoib {
        /// Mode of sending. `None`: the mode of the shared netdev.
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

/// Modes of a macvlan that a configuration can request.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Macvlan {
    Bridge,
    Private,
    Vepa,
    Passthru,
}

/// The modes of an ipvlan.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Ipvlan {
    L2,
    L3,
    L3s,
}

/// Reads `child` of `file`; a macvlan's mode is `bridge` by default, an ipvlan's `l2`.
///
/// # Errors
/// A value is wrong, or RDMA does not work with the child.
pub fn parse(file: &Field<'_>) -> Result<Option<ChildConf>, ConfError> {
    let child = file.object("child")?;
    let is_there = |name: &str| child.at(name).is_there();
    let child = match child.get("type")? {
        None if !is_there("mode") => return Ok(None),
        None | Some(Kind::Macvlan) => {
            let mode = match child.get("mode")?.unwrap_or(Macvlan::Bridge) {
                Macvlan::Bridge => MacvlanMode::Bridge,
                Macvlan::Private => MacvlanMode::Private,
                Macvlan::Vepa => MacvlanMode::Vepa,
                Macvlan::Passthru => {
                    return Err(ConfError::Unsupported {
                        field: "child.mode",
                        value: "passthru".into(),
                        remedy: "it allows one child, so that nothing is shared; use \"bridge\", or mode \"move\"",
                    });
                }
            };
            ChildConf::Macvlan { mode }
        }
        Some(Kind::Ipvlan) => match child.get("mode")?.unwrap_or(Ipvlan::L2) {
            Ipvlan::L2 => ChildConf::Ipvlan {
                mode: IpvlanMode::L2,
            },
            Ipvlan::L3 | Ipvlan::L3s => {
                return Err(ConfError::Unsupported {
                    field: "child.mode",
                    value: child.at("mode").read()?,
                    remedy: "such a child does no neighbour discovery (NOARP): RDMA would send to its own \
                             hardware address (docs/dev/lab.md); use \"l2\"",
                });
            }
        },
        Some(Kind::Ipoib) => ChildConf::Ipoib {
            mode: child.get("mode")?,
        },
    };
    Ok(Some(child))
}
