// SPDX-License-Identifier: Apache-2.0
//! Netdevs whose default routers must survive while a rail's netdev is set to forward.

use rdma_netns::InterfaceName;
use serde::{Deserialize, Serialize};

/// A netdev of the host whose `accept_ra` is temporarily 2 while forwarding is set on a rail's netdev. Otherwise the
/// kernel would drop the default routers that the netdev learned from router advertisements
/// (`rt6_purge_dflt_routers()`, `net/ipv6/route.c`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spared {
    /// Name.
    pub name: InterfaceName,
    /// Index.
    pub index: u32,
    /// `accept_ra` before the change, to be restored.
    pub accept_ra: i32,
}
