// SPDX-License-Identifier: Apache-2.0
//! The possible nodes of a cluster in the lab: virtual machines. The control plane and the other nodes reach each node
//! by its management NIC.

use std::env;

/// A node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Member {
    /// Number, from 1 on.
    pub number: usize,
    /// Name in Kubernetes.
    pub name: &'static str,
    /// The node's address for traffic other than RDMA.
    pub address: &'static str,
}

/// The first node. It may be the only one.
pub const FIRST: Member = Member {
    number: 1,
    name: "node",
    address: "10.99.0.2",
};

/// The second node, if there are two.
pub const SECOND: Member = Member {
    number: 2,
    name: "node-2",
    address: "10.99.0.3",
};

/// All nodes. Each has keys and certificates.
pub const ALL: [Member; 2] = [FIRST, SECOND];

/// Name of the first node.
pub const NODE: &str = FIRST.name;

/// Addresses of all pods. The primary network is routed between the nodes.
pub const PODS: &str = "10.88.0.0/16";

impl Member {
    /// Returns the node that runs on this machine (`integration/lab/vm --node`).
    pub fn this() -> Self {
        let number = env::var("RDMA_LAB_NODE").ok();
        let number: usize = number.map_or(1, |it| it.parse().expect("a node's number"));
        ALL[number - 1]
    }

    /// Returns the name of the netdev that connects the node's management NIC with the control plane.
    pub(super) fn tap(self) -> String {
        format!("node-{}", self.number)
    }

    /// Returns the name of the netdev that connects the node's RDMA NICs with the other node's.
    pub(super) fn fabric(self) -> String {
        format!("fabric-{}", self.number)
    }

    /// Returns the node's part of [`PODS`].
    pub fn pods(self) -> String {
        format!("10.88.{}.0/24", self.number)
    }

    /// Returns the address of the router of the node's pods.
    pub fn router(self) -> String {
        format!("10.88.{}.1", self.number)
    }
}
