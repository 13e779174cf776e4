// SPDX-License-Identifier: Apache-2.0
//! The nodes that a cluster in the lab can have: virtual machines, each with a NIC by which the others and the control
//! plane reach it.

use std::env;

/// A node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Member {
    /// Number, from 1 on.
    pub number: usize,
    /// Name in Kubernetes.
    pub name: &'static str,
    /// The node's address for all but RDMA.
    pub address: &'static str,
}

/// The first node, or the only one.
pub const FIRST: Member = Member {
    number: 1,
    name: "node",
    address: "10.99.0.2",
};

/// The second one, if there are two.
pub const SECOND: Member = Member {
    number: 2,
    name: "node-2",
    address: "10.99.0.3",
};

/// All nodes, which have keys and certificates.
pub const ALL: [Member; 2] = [FIRST, SECOND];

/// The name of the first node, or the only one.
pub const NODE: &str = FIRST.name;

/// The addresses of all pods: the primary network is routed from node to node.
pub const PODS: &str = "10.88.0.0/16";

impl Member {
    /// Returns the node that this machine is (`integration/lab/vm --node`).
    pub fn this() -> Self {
        let number = env::var("RDMA_LAB_NODE").ok();
        let number: usize = number.map_or(1, |it| it.parse().expect("a node's number"));
        ALL[number - 1]
    }

    /// The netdev on the host that its NIC is connected with.
    pub(super) fn tap(self) -> String {
        format!("node-{}", self.number)
    }

    /// The netdev on the host that its fabric goes on in.
    pub(super) fn fabric(self) -> String {
        format!("fabric-{}", self.number)
    }

    /// Returns its own part of [`PODS`].
    pub fn pods(self) -> String {
        format!("10.88.{}.0/24", self.number)
    }

    /// Their router's address.
    pub fn router(self) -> String {
        format!("10.88.{}.1", self.number)
    }
}
