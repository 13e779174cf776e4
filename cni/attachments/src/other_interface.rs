// SPDX-License-Identifier: Apache-2.0
//! Interfaces of the pod that other plugins made.

use rdma_netns::{InterfaceName, Route, Rule};
use serde::{Deserialize, Serialize};

/// An interface of the pod that another plugin made, with a table of its own: packets from its addresses leave by it,
/// although a rail's route in the main table is more specific than its own.
///
/// DEL does not read the pod's routes. So ADD adds the rules before the routes, and DEL removes the routes before the
/// rules: as long as one of the rules is there, routes can be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherInterface {
    /// Its name at ADD.
    pub name: InterfaceName,
    /// The rules that lead to its table, one for each address. There is at least one, and all lead to one table.
    pub rules: Vec<Rule>,
    /// Its routes of the main table, as they are in its own table, those on the link first.
    pub routes: Vec<Route>,
}

impl OtherInterface {
    /// Takes out the rules and routes that `other`, of another attachment of the same pod, has as well.
    pub fn leave_to(&mut self, other: &Self) {
        self.rules.retain(|rule| !other.rules.contains(rule));
        if self.name == other.name {
            self.routes.retain(|route| !other.routes.contains(route));
        }
    }
}
