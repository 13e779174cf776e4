// SPDX-License-Identifier: Apache-2.0
//! Pairs of rails, and the results of their requests.

use crate::rails::Rail;
use rdma_netns::{
    HardwareAddress,
    sidr::{AskError, Local},
};
use std::{io, net::IpAddr, time::Duration};

/// An own rail, which sends requests, and a rail of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// Name of the own rail. `None`: the kernel's route selects the own rail.
    pub(crate) from: Option<String>,
    /// Description of the peer's rail, such as `rdma0 of default/web`, or its address.
    pub(crate) to: String,
    /// The peer's rail. `None`: only its address is known.
    pub(crate) rail: Option<PeerRail>,
    /// The own address, if it is known, and the peer's address. `None`: the two rails have no addresses of one family.
    pub(crate) addresses: Option<(Option<IpAddr>, IpAddr)>,
    /// True if the two rails must reach each other. With `--exchange`, and between nodes, this applies only to rails on
    /// one network.
    pub(crate) is_required: bool,
}

impl Pair {
    /// Returns the pair of the own rail `one` and the rail `other` of `peer`. Both rails must reach each other if they
    /// are on one network.
    pub(crate) fn of(one: &Rail, peer: &str, other: &Rail) -> Self {
        let is_same = one.is_same(other);
        Self {
            from: Some(one.netdev.clone()),
            to: other.netdev.clone(),
            rail: Some(PeerRail {
                peer: peer.to_owned(),
                netdev: other.netdev.clone(),
                mac: other.mac.clone(),
                is_same,
                is_of_node: other.place.is_some(),
            }),
            addresses: one.addresses_to(other).map(|(from, to)| (Some(from), to)),
            is_required: is_same,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerRail {
    /// Name of the pod or node.
    pub(crate) peer: String,
    /// Name of the rail's netdev.
    pub(crate) netdev: String,
    /// Hardware address of the rail, if known.
    pub(crate) mac: Option<HardwareAddress>,
    /// Value of [`Rail::is_same`] for the rails of the pair.
    pub(crate) is_same: bool,
    /// True if the peer is a node. While a pod has the rail, the node does not have the rail's address.
    pub(crate) is_of_node: bool,
}

/// Result of the requests for a pair.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) pair: Pair,
    pub(crate) sent: u32,
    /// Time until each answer.
    pub(crate) times: Vec<Duration>,
    /// Own end of the requests, and the name of its RDMA device. `None`: the RDMA device has not sent a request yet.
    pub(crate) local: Option<(Local, String)>,
    /// Reason why the latest request has no answer.
    pub(crate) failure: Option<AskError>,
    /// Result of an ICMP request: true if the peer answered. `None`: the command sent no ICMP request, because the peer
    /// answered the latest RDMA request, or because RDMA requests cannot be sent.
    pub(crate) icmp: Option<io::Result<bool>>,
    /// Rail of the peer that answers instead of the expected rail, because cables are swapped.
    pub(crate) swapped_with: Option<String>,
}

impl Outcome {
    /// Returns true if each request was answered, or if the rails of the pair need not reach each other.
    pub(crate) fn is_good(&self) -> bool {
        !self.pair.is_required || self.is_complete()
    }

    /// Returns true if each request was answered.
    pub(crate) fn is_complete(&self) -> bool {
        self.sent > 0 && self.times.len() == self.sent as usize
    }

    pub(crate) fn new(pair: Pair) -> Self {
        Self {
            pair,
            sent: 0,
            times: vec![],
            local: None,
            failure: None,
            icmp: None,
            swapped_with: None,
        }
    }

    /// Returns false if a further request would fail in the same way.
    pub(crate) fn is_retryable(&self) -> bool {
        matches!(
            self.failure,
            None | Some(AskError::Silent { .. } | AskError::Unresolved(_) | AskError::NoPath(_))
        ) && self.pair.addresses.is_some()
    }
}
