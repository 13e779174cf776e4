// SPDX-License-Identifier: Apache-2.0
//! Remembers earlier offers. While a device is in a pod, its netdev is not in the daemon's namespace, and selectors by
//! the netdev's name or type cannot match the device.

use super::Offer;
use rdma_netns::{DeviceAddress, Hca, Inventory};
use rdma_resources::Published;
use std::{collections::BTreeMap, fmt, path::Path};

/// Devices by resource, as last offered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PreviousOffers {
    resources: BTreeMap<String, BTreeMap<DeviceAddress, Remembered>>,
}

/// Remembered attributes of a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Remembered {
    /// RDMA device; `None`: only the address survived a restart of the daemon.
    pub(super) hca: Option<Hca>,
    /// Hardware address of the netdev.
    pub(super) mac: Option<String>,
    /// Physical function, if it is a virtual or sub-function.
    physical_function: Option<DeviceAddress>,
}

/// A device of a resource that is gone from the node's bus. Leaves out virtual functions whose physical function still
/// exists, because an administrator removed them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// PCI function or auxiliary device.
    pub address: DeviceAddress,
    /// RDMA device; `None`: only the address survived a restart of the daemon.
    pub rdma: Option<String>,
}

/// Formats `0000:3b:00.0 (mlx5_0)`.
impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rdma {
            Some(rdma) => write!(f, "{} ({rdma})", self.address),
            None => write!(f, "{}", self.address),
        }
    }
}

impl PreviousOffers {
    /// Reads the offers of an earlier daemon in `state_dir`; unreadable ones count as none.
    pub fn read(state_dir: &Path) -> Self {
        match Published::read(state_dir) {
            Ok(published) => published.map_or_else(Self::default, |it| Self::of_published(&it)),
            Err(error) => {
                log::warn!("earlier offers are not used: {error}");
                Self::default()
            }
        }
    }

    /// Returns the devices of `offers`, for the next call of [`offers`](super::offers).
    pub fn of(offers: &[Offer]) -> Self {
        let mut previous = Self::default();
        previous.remember(offers, &Inventory::default());
        previous
    }

    /// Remembers the devices of `offers`, which were made from `inventory`. Also keeps devices that are gone, and
    /// resources that are not offered or configured at present, because their devices can still be in pods.
    pub fn remember(&mut self, offers: &[Offer], inventory: &Inventory) {
        for offer in offers {
            let devices = self.resources.entry(offer.name.to_string()).or_default();
            devices.retain(|address, seen| seen.is_gone(address, inventory));
            devices.extend(offer.devices.iter().map(|device| {
                let function = inventory.function(&device.address);
                let seen = Remembered {
                    hca: Some(device.hca.clone()),
                    mac: device.mac.clone(),
                    physical_function: function.and_then(|it| it.device.physical_function.clone()),
                };
                (device.address.clone(), seen)
            }));
        }
    }

    /// Returns the devices that `resource` had and the node no longer has.
    pub fn gone(&self, resource: &str, inventory: &Inventory) -> Vec<Gone> {
        let devices = self.resources.get(resource).into_iter().flatten();
        let gone = devices.filter(|(address, seen)| seen.is_gone(address, inventory));
        gone.map(|(address, seen)| Gone {
            address: address.clone(),
            rdma: seen.hca.as_ref().map(|hca| hca.name.clone()),
        })
        .collect()
    }

    /// Returns the offers that an earlier daemon published.
    pub fn of_published(published: &Published) -> Self {
        let resources = published.resources.iter().map(|(name, resource)| {
            let devices = resource.all_devices().into_iter().map(|address| {
                let seen = Remembered {
                    physical_function: published.physical_functions.get(address).cloned(),
                    ..Remembered::default()
                };
                (address.clone(), seen)
            });
            (name.clone(), devices.collect())
        });
        Self {
            resources: resources.collect(),
        }
    }

    pub(super) fn device(&self, resource: &str, address: &DeviceAddress) -> Option<&Remembered> {
        self.resources.get(resource)?.get(address)
    }
}

/// Returns the physical functions of the virtual functions and sub-functions in `offers`; their addresses alone do not
/// show this.
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

impl Remembered {
    fn is_gone(&self, address: &DeviceAddress, inventory: &Inventory) -> bool {
        let is_there = |address: &DeviceAddress| inventory.function(address).is_some();
        !is_there(address) && !self.physical_function.as_ref().is_some_and(is_there)
    }
}
