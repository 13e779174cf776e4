// SPDX-License-Identifier: Apache-2.0
//! `child`: what a pod gets of a netdev that is shared.

use cni_protocol::{ConfError, Fields};
use rdma_netns::{
    Child,
    child::{IpvlanMode, MacvlanMode},
};

/// Reads `child`; the default is a macvlan in bridge mode.
pub(super) fn parse(fields: Fields<'_>) -> Result<Child, ConfError> {
    let child = fields.object("child")?;
    let is_ipvlan = child.choice("type", &[("macvlan", false), ("ipvlan", true)])?;
    if is_ipvlan == Some(true) {
        ipvlan(child)
    } else {
        macvlan(child)
    }
}

fn macvlan(child: Fields<'_>) -> Result<Child, ConfError> {
    let modes = [
        ("bridge", Some(MacvlanMode::Bridge)),
        ("private", Some(MacvlanMode::Private)),
        ("vepa", Some(MacvlanMode::Vepa)),
        ("passthru", None),
    ];
    match child.choice("mode", &modes)? {
        None => Ok(Child::Macvlan(MacvlanMode::Bridge)),
        Some(Some(mode)) => Ok(Child::Macvlan(mode)),
        Some(None) => Err(ConfError::Unsupported {
            field: "child.mode",
            value: "passthru".into(),
            remedy: "it allows one child, so that nothing is shared; use \"bridge\", or mode \"move\"",
        }),
    }
}

fn ipvlan(child: Fields<'_>) -> Result<Child, ConfError> {
    let modes = [("l2", Some(IpvlanMode::L2)), ("l3", None), ("l3s", None)];
    match child.choice("mode", &modes)? {
        None => Ok(Child::Ipvlan(IpvlanMode::L2)),
        Some(Some(mode)) => Ok(Child::Ipvlan(mode)),
        Some(None) => Err(ConfError::Unsupported {
            field: "child.mode",
            value: child.string("mode")?.unwrap_or_default().to_owned(),
            remedy: "such a child does no neighbour discovery (NOARP): RDMA would send to its own \
                     hardware address (docs/lab.md); use \"l2\"",
        }),
    }
}
