// SPDX-License-Identifier: Apache-2.0
//! Netdevs of the host that must keep their default routers while a restore sets `forwarding` on a rail's netdev.

use rdma_netns::InterfaceName;
use serde::{Deserialize, Serialize};

/// A netdev of the host on which a restore temporarily sets `accept_ra` to 2, while it sets `forwarding` on a rail's
/// netdev. With another value, the kernel would drop the default routers that the netdev learned from router
/// advertisements (`rt6_purge_dflt_routers()`, `net/ipv6/route.c`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spared {
    /// Name of the netdev.
    pub name: InterfaceName,
    /// Index of the netdev.
    pub index: u32,
    /// Value of `accept_ra` before the change. The restore sets it again.
    pub accept_ra: i32,
}
