// SPDX-License-Identifier: Apache-2.0
//! `child`: what a pod gets of a netdev that is shared.

use cni_protocol::ConfError;
use conf_reader::Field;
use rdma_netns::{
    Child,
    child::{IpvlanMode, MacvlanMode},
};
use serde::Deserialize;

#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    #[default]
    Macvlan,
    Ipvlan,
}

/// Reads `child` of `file`; the default is a macvlan in bridge mode.
///
/// # Errors
/// A value is wrong, or it is none that RDMA works with.
pub fn parse(file: &Field<'_>) -> Result<Child, ConfError> {
    let child = file.object("child")?;
    match child.get("type")?.unwrap_or_default() {
        Kind::Macvlan => match child.get("mode")?.unwrap_or(MacvlanMode::Bridge) {
            MacvlanMode::Passthru => Err(ConfError::Unsupported {
                field: "child.mode",
                value: "passthru".into(),
                remedy: "it allows one child, so that nothing is shared; use \"bridge\", or mode \"move\"",
            }),
            mode => Ok(Child::Macvlan(mode)),
        },
        Kind::Ipvlan => match child.get("mode")?.unwrap_or(IpvlanMode::L2) {
            IpvlanMode::L2 => Ok(Child::Ipvlan(IpvlanMode::L2)),
            _ => Err(ConfError::Unsupported {
                field: "child.mode",
                value: child.at("mode").read()?,
                remedy: "such a child does no neighbour discovery (NOARP): RDMA would send to its own \
                         hardware address (docs/lab.md); use \"l2\"",
            }),
        },
    }
}
