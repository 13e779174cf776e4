// SPDX-License-Identifier: Apache-2.0
//! Attributes of netdevs. The daemon ignores an event that changes none of them.

use rdma_netns::{HardwareAddress, Link};

/// Attributes of a netdev that affect health.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LinkState {
    name: String,
    up: bool,
    carrier: bool,
    master: Option<u32>,
    mac: HardwareAddress,
}

impl From<&Link> for LinkState {
    fn from(link: &Link) -> Self {
        Self {
            name: link.name.to_string(),
            up: link.up,
            carrier: link.carrier,
            master: link.master,
            mac: link.mac.clone(),
        }
    }
}
