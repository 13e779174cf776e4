// SPDX-License-Identifier: Apache-2.0
//! All that the daemon knows of its node at one time.

use crate::{
    conf::Conf,
    erdma::{Report, Side},
    offer::{Gone, Offer, Unhealthy},
};
use rdma_netns::Inventory;
use std::{collections::BTreeMap, sync::Arc};

/// The node at one time. Tasks hold it by a `tokio::sync::watch::Receiver<Arc<Node>>`.
#[derive(Clone, Debug)]
pub struct Node {
    /// The configuration.
    pub conf: Arc<Conf>,
    /// The hardware.
    pub inventory: Arc<Inventory>,
    /// What of it is not healthy.
    pub unhealthy: Unhealthy,
    /// What is advertised.
    pub offers: Vec<Offer>,
    /// Devices that resources had, and the node has no more, by the resources' names.
    pub gone: BTreeMap<String, Vec<Gone>>,
    /// The eRDMA NICs.
    pub erdma: Side,
}

impl Node {
    /// What it has of `resource`.
    pub fn offer(&self, resource: &str) -> Option<&Offer> {
        self.offers
            .iter()
            .find(|offer| offer.name.as_str() == resource)
    }

    /// What kubelet's device plugins serve of it: nothing of what is served by claims.
    pub fn advertised(&self) -> impl Iterator<Item = &Offer> {
        self.offers
            .iter()
            .filter(|offer| !self.conf.by_claims(&offer.name))
    }
}

/// Why the daemon is to look at something again; sent to it from wherever that is noticed.
#[derive(Clone, Debug, PartialEq)]
pub enum Signal {
    /// All of it may be different.
    Reload,
    /// The configuration may be another one.
    Configuration,
    /// Devices may have come, gone or been renumbered.
    Hardware,
    /// This is the hardware now, and what of it is not healthy.
    Seen(Arc<Inventory>, Unhealthy),
    /// So it stands with the eRDMA NICs now.
    Erdma(Report),
}
