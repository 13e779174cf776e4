// SPDX-License-Identifier: Apache-2.0
//! What was offered before. A device that is in a pod has no netdev in the daemon's namespace:
//! a selector by the netdev's name or type has nothing to look at then, and the device is the
//! same.

use super::Offer;
use rdma_netns::{DeviceAddress, Hca, Inventory};
use rdma_resources::{Published, published::Devices};
use std::{collections::BTreeMap, fmt, path::Path};

/// Devices by resource, as they were when last offered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PreviousOffers {
    resources: BTreeMap<String, BTreeMap<DeviceAddress, Seen>>,
}

/// What is kept of a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// Its RDMA device; none: only the address outlived a restart of the daemon.
    pub(super) hca: Option<Hca>,
    /// Hardware address of its netdev.
    pub(super) mac: Option<String>,
    /// What it is a virtual or sub-function of.
    physical_function: Option<DeviceAddress>,
}

/// A device that a resource had, and that is not on the node any more: it fell off its bus. A virtual function
/// whose physical function is still there is none, since somebody took it away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Its PCI function or auxiliary device.
    pub address: DeviceAddress,
    /// Its RDMA device; none: only the address outlived a restart of the daemon.
    pub rdma: Option<String>,
}

/// `0000:3b:00.0 (mlx5_0)`
impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rdma {
            Some(rdma) => write!(f, "{} ({rdma})", self.address),
            None => write!(f, "{}", self.address),
        }
    }
}

impl PreviousOffers {
    /// Those of an earlier daemon, which `state_dir` has. None that can be read: there were none.
    pub fn read(state_dir: &Path) -> Self {
        match Published::read(state_dir) {
            Ok(published) => published.map_or_else(Self::default, |it| Self::of_published(&it)),
            Err(error) => {
                log::warn!("what was offered before is not known: {error}");
                Self::default()
            }
        }
    }

    /// What `offers` had: for the next call of [`offers`](super::offers).
    pub fn of(offers: &[Offer]) -> Self {
        let mut previous = Self::default();
        previous.remember(offers, &Inventory::default());
        previous
    }

    /// Takes in what `offers` have, which were made of `inventory`. A resource that is not offered for a while, or
    /// not configured, is not forgotten: its devices can be in pods all the time. Nor is a device that is gone.
    pub fn remember(&mut self, offers: &[Offer], inventory: &Inventory) {
        for offer in offers {
            let devices = self.resources.entry(offer.name.to_string()).or_default();
            devices.retain(|address, seen| seen.is_gone(address, inventory));
            devices.extend(offer.devices.iter().map(|device| {
                let function = inventory.function(&device.address);
                let seen = Seen {
                    hca: Some(device.hca.clone()),
                    mac: device.mac.clone(),
                    physical_function: function.and_then(|it| it.device.physical_function.clone()),
                };
                (device.address.clone(), seen)
            }));
        }
    }

    /// The devices that `resource` had, and the node has no more.
    pub fn gone(&self, resource: &str, inventory: &Inventory) -> Vec<Gone> {
        let devices = self.resources.get(resource).into_iter().flatten();
        let gone = devices.filter(|(address, seen)| seen.is_gone(address, inventory));
        gone.map(|(address, seen)| Gone {
            address: address.clone(),
            rdma: seen.hca.as_ref().map(|hca| hca.name.clone()),
        })
        .collect()
    }

    /// What an earlier run of the daemon offered.
    pub fn of_published(published: &Published) -> Self {
        let resources = published.resources.iter().map(|(name, resource)| {
            let addresses: Vec<&DeviceAddress> = match &resource.devices {
                Devices::Every(all) => all.iter().collect(),
                Devices::ById(each) => each.values().flatten().collect(),
            };
            let devices = addresses.into_iter().map(|address| {
                let seen = Seen {
                    physical_function: published.physical_functions.get(address).cloned(),
                    ..Seen::default()
                };
                (address.clone(), seen)
            });
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

/// What the devices of `offers` are functions of that are virtual or sub-functions. Their addresses alone do not
/// say it.
pub fn physical_functions(
    offers: &[Offer],
    inventory: &Inventory,
) -> BTreeMap<DeviceAddress, DeviceAddress> {
    let devices = offers.iter().flat_map(|offer| &offer.devices);
    let physical = devices.filter_map(|device| {
        let function = inventory.function(&device.address)?;
        Some((
            device.address.clone(),
            function.device.physical_function.clone()?,
        ))
    });
    physical.collect()
}

impl Seen {
    fn is_gone(&self, address: &DeviceAddress, inventory: &Inventory) -> bool {
        let is_there = |address: &DeviceAddress| inventory.function(address).is_some();
        !is_there(address) && !self.physical_function.as_ref().is_some_and(is_there)
    }
}
