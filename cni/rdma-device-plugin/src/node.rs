// SPDX-License-Identifier: Apache-2.0
//! State of the node at one time.

use crate::{
    conf::Conf,
    erdma::{Report, Side},
    offer::{Gone, Offer, Unhealthy},
};
use ::lldp::Switches;
use rdma_netns::Inventory;
use std::{collections::BTreeMap, sync::Arc};

/// State of the node at one time. Tasks hold it as a `tokio::sync::watch::Receiver<Arc<Node>>`.
#[derive(Clone, Debug)]
pub struct Node {
    /// Configuration.
    pub conf: Arc<Conf>,
    /// Hardware.
    pub inventory: Arc<Inventory>,
    /// Unhealthy devices.
    pub unhealthy: Unhealthy,
    /// Offers.
    pub offers: Vec<Offer>,
    /// Offer of the connection manager, for the fabric watch.
    pub manager: Option<Offer>,
    /// Devices that resources had and the node no longer has, by the resources' names.
    pub gone: BTreeMap<String, Vec<Gone>>,
    /// eRDMA NICs.
    pub erdma: Side,
    /// Switches of the NICs; empty without `lldp`.
    pub switches: Arc<Switches>,
}

impl Node {
    /// Returns the offer of `resource`.
    pub fn offer(&self, resource: &str) -> Option<&Offer> {
        self.offers
            .iter()
            .chain(&self.manager)
            .find(|offer| offer.name.as_str() == resource)
    }

    /// Returns the offers that device plugins serve, without those that claims serve.
    pub fn advertised(&self) -> impl Iterator<Item = &Offer> {
        self.offers
            .iter()
            .chain(&self.manager)
            .filter(|offer| !self.conf.by_claims(&offer.name))
    }
}

/// Reason for the daemon to plan again; any task can send it.
#[derive(Clone, Debug, PartialEq)]
pub enum Signal {
    /// Everything may have changed.
    Reload,
    /// The configuration may have changed.
    Configuration,
    /// Devices may have come, gone or been renumbered.
    Hardware,
    /// New state of the hardware and its unhealthy devices.
    Observed(Arc<Inventory>, Unhealthy),
    /// New state of the eRDMA NICs.
    Erdma(Report),
    /// Other switches of the NICs.
    Switches(Arc<Switches>),
}
