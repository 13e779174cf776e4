// SPDX-License-Identifier: Apache-2.0
//! A resource, as far as figures go.

use crate::{
    node::Node,
    offer::{Offer, OfferedId, Unhealthy},
};
use rdma_netns::DeviceAddress;
use rdma_resources::Sharing;

/// One resource.
#[derive(Clone, Debug)]
pub struct Offered {
    /// Its name.
    pub name: String,
    /// Whether an id's devices are one pod's alone.
    pub sharing: Sharing,
    /// Its devices.
    pub devices: Vec<DeviceAddress>,
    /// Its ids, which name devices by their places.
    pub ids: Vec<OfferedId>,
    /// How many devices it is to have.
    pub expected: usize,
    /// How many of its devices can be used.
    pub present: usize,
    /// Its devices that are healthy by themselves and cannot be used by it, as `mlx5_bond_0 in rdma/a`, each with the
    /// reason.
    pub faults: Vec<(String, String)>,
}

impl Offered {
    /// What is offered of `offer` while the devices of `unhealthy` are that.
    fn of(offer: &Offer, unhealthy: &Unhealthy) -> Self {
        Self {
            name: offer.name.to_string(),
            sharing: offer.sharing,
            devices: offer.devices.iter().map(|it| it.address.clone()).collect(),
            ids: offer.ids.clone(),
            expected: offer.expected,
            present: offer.devices.iter().filter(|it| it.fault.is_none()).count(),
            faults: offer.own_faults(unhealthy),
        }
    }

    /// What `node` offers.
    pub(crate) fn all(node: &Node) -> impl Iterator<Item = Self> {
        let advertised = node.advertised();
        advertised.map(|offer| Self::of(offer, &node.unhealthy))
    }

    /// One of which nothing is left.
    pub(crate) fn empty(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            sharing: Sharing::Shared,
            devices: vec![],
            ids: vec![],
            expected: 0,
            present: 0,
            faults: vec![],
        }
    }
}
