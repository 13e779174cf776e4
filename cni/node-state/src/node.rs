// SPDX-License-Identifier: Apache-2.0
//! State of the node at one time.

use crate::erdma::{Report, Side};
use ::lldp::Switches;
use daemon_conf::Conf;
use offer::{Gone, Loss, Offer, Unhealthy};
use rdma_netns::Inventory;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// State of the node at one time. Tasks receive the latest state by a `tokio::sync::watch::Receiver<Arc<Node>>`.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Configuration.
    pub conf: Arc<Conf>,
    /// Hardware.
    pub inventory: Arc<Inventory>,
    /// Unhealthy devices.
    pub unhealthy: Unhealthy,
    /// Offers of the configured resources.
    pub offers: Vec<Offer>,
    /// Offer of the connection manager, for the fabric watch.
    pub manager: Option<Offer>,
    /// Devices that are gone from the node's bus, by the name of their resource.
    pub gone: BTreeMap<String, Vec<Gone>>,
    /// Discovery and state of the eRDMA NICs.
    pub erdma: Side,
    /// Switches of the NICs; empty if the configuration has no `lldp`.
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

    /// Returns the offers that the daemon advertises to kubelet. Leaves out resources that Kubernetes allocates by
    /// claims.
    pub fn advertised(&self) -> impl Iterator<Item = &Offer> {
        self.offers
            .iter()
            .chain(&self.manager)
            .filter(|offer| !self.conf.by_claims(&offer.name))
    }

    /// Returns the offers of resources that Kubernetes allocates by claims.
    pub fn by_claims(&self) -> impl Iterator<Item = &Offer> {
        let offers = self.offers.iter();
        offers.filter(|offer| self.conf.by_claims(&offer.name))
    }

    /// Returns the losses: devices that containers of a resource cannot use.
    pub fn losses(&self) -> BTreeSet<Loss> {
        offer::losses(&self.offers, &self.unhealthy, &self.gone)
    }
}

/// Event for the daemon's loop. Any task can send a signal.
#[derive(Clone, Debug, PartialEq)]
pub enum Signal {
    /// Configuration and hardware may have changed.
    Reload,
    /// The configuration may have changed.
    Configuration,
    /// New state of the hardware, with the unhealthy devices.
    Observed(Arc<Inventory>, Unhealthy),
    /// New state of the eRDMA NICs.
    Erdma(Report),
    /// New switches of the NICs.
    Switches(Arc<Switches>),
}
