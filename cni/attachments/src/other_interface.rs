// SPDX-License-Identifier: Apache-2.0
//! Interfaces of the pod that other plugins made.

use rdma_netns::{InterfaceName, Link, Namespace, Route, Rule};
use serde::{Deserialize, Serialize};

/// Rules and routes for an interface of the pod that another plugin made. By the main table, packets from this
/// interface's addresses to a rail's network would leave through the rail. Rules that the kernel evaluates before the
/// main table therefore select a routing table of the interface for these packets.
///
/// ADD adds the rules before the routes, and DEL removes the routes before the rules. A table therefore has routes only
/// while its rule exists, and DEL need not read the pod's routes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherInterface {
    /// The interface's name at ADD.
    pub name: InterfaceName,
    /// The interface's index in the pod.
    pub index: u32,
    /// The routing table of this interface. No other attachment of the pod uses it.
    pub table: u32,
    /// The rules that select the table. Each rule has an address of the interface as source, and a network of a rail as
    /// destination.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// The interface's routes, in its own table and in the tables of the pod's other such interfaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
}

impl OtherInterface {
    /// Returns the interface in `pod`: the netdev with the recorded index, otherwise the netdev with the recorded name.
    pub fn link<'a>(&self, pod: &'a Namespace) -> Option<&'a Link> {
        pod.link_by_index(self.index)
            .or_else(|| pod.link(&self.name))
    }
}
