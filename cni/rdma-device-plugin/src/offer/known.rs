//! What was offered before. A device that is in a pod has no netdev in the daemon's namespace:
//! a selector by the netdev's name or type has nothing to look at then, and the device is the
//! same.

use super::Offer;
use rdma_netns::{DeviceAddress, Hca};
use rdma_resources::{Published, published::Devices};
use std::collections::BTreeMap;

/// Devices by resource, as they were when last offered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Known {
    resources: BTreeMap<String, BTreeMap<DeviceAddress, Seen>>,
}

/// What is kept of a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// Its RDMA device; none: only the address outlived a restart of the daemon.
    pub(super) hca: Option<Hca>,
    /// Hardware address of its netdev.
    pub(super) mac: Option<String>,
}

impl Known {
    /// What `offers` had: for the next call of [`offers`](super::offers).
    pub fn of(offers: &[Offer]) -> Self {
        let mut known = Self::default();
        known.remember(offers);
        known
    }

    /// Takes in what `offers` have. A resource that is not offered for a while, or not configured,
    /// is not forgotten: its devices can be in pods all the time.
    pub fn remember(&mut self, offers: &[Offer]) {
        let seen = |offer: &Offer| {
            let devices = offer.devices.iter().map(|device| {
                let seen = Seen {
                    hca: Some(device.hca.clone()),
                    mac: device.mac.clone(),
                };
                (device.address.clone(), seen)
            });
            (offer.name.to_string(), devices.collect())
        };
        self.resources.extend(offers.iter().map(seen));
    }

    /// What an earlier run of the daemon offered.
    pub fn of_published(published: &Published) -> Self {
        let resources = published.resources.iter().map(|(name, resource)| {
            let addresses: Vec<&DeviceAddress> = match &resource.devices {
                Devices::Every(all) => all.iter().collect(),
                Devices::ById(each) => each.values().flatten().collect(),
            };
            let devices = addresses
                .into_iter()
                .map(|address| (address.clone(), Seen::default()));
            (name.clone(), devices.collect())
        });
        Self {
            resources: resources.collect(),
        }
    }

    pub(super) fn device(&self, resource: &str, address: &DeviceAddress) -> Option<&Seen> {
        self.resources.get(resource)?.get(address)
    }
}
