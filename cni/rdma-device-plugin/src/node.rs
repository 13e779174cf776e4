//! All that the daemon knows of its node at one time.

use crate::{
    conf::Conf,
    offer::{Offer, Unhealthy},
};
use rdma_netns::Inventory;
use std::sync::Arc;

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
}
