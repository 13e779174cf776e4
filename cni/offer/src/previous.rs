// SPDX-License-Identifier: Apache-2.0
//! Remembers the devices of earlier offers. While a device's netdev is in a pod, the netdev is not in the daemon's
//! namespace. Selectors by the netdev's name then cannot match the device.

use crate::Offer;
use rdma_netns::{DeviceAddress, Hca, Inventory};
use rdma_resources::{Published, limited::boot_id};
use std::{collections::BTreeMap, fmt, path::Path};

/// Devices by resource, as last offered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PreviousOffers {
    resources: BTreeMap<String, BTreeMap<DeviceAddress, Remembered>>,
    /// Number of ids of each resource since the node's boot, if [`Offer::keeps_count`] is true.
    counts: BTreeMap<String, u32>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Remembered {
    /// RDMA device. `None`: unknown since the daemon was restarted.
    pub(super) hca: Option<Hca>,
    /// Hardware address of the netdev.
    pub(super) mac: Option<String>,
    /// Physical function, if the device is a virtual function or sub-function.
    physical_function: Option<DeviceAddress>,
}

/// A device of a resource that is gone from the node's bus. A virtual function or sub-function counts as gone only if
/// its physical function is also gone: otherwise an administrator has removed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// PCI function or auxiliary device.
    pub address: DeviceAddress,
    /// RDMA device. `None`: unknown since the daemon was restarted.
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
    /// Reads the offers of an earlier daemon from `state_dir`. Leaves out the numbers of ids if the node has rebooted
    /// since. Returns no offers if the file cannot be read.
    pub fn read(state_dir: &Path) -> Self {
        match Published::read(state_dir) {
            Ok(published) => {
                let mut previous = published
                    .as_ref()
                    .map(Self::of_published)
                    .unwrap_or_default();
                let boot = published.and_then(|it| it.boot_id);
                if boot_id().is_ok_and(|now| boot.is_some_and(|it| it != now)) {
                    previous.counts.clear();
                }
                previous
            }
            Err(error) => {
                log::warn!("the daemon ignores the offers of earlier daemons: {error}");
                Self::default()
            }
        }
    }

    /// Returns the devices of `offers`, for the next call of [`offers`](crate::offers).
    pub fn of(offers: &[Offer]) -> Self {
        let mut previous = Self::default();
        previous.remember(offers, &Inventory::default());
        previous
    }

    /// Remembers the devices of `offers`, which were made from `inventory`. Keeps devices that are gone, and resources
    /// that are not offered or configured at present: their devices can still be in pods.
    pub fn remember(&mut self, offers: &[Offer], inventory: &Inventory) {
        for offer in offers {
            if let Some(count) = offer.count() {
                self.counts.insert(offer.name.to_string(), count);
            }
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

    /// Returns the devices of `resource` that are gone, as defined by [`Gone`].
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
        // a file without boot id is from an earlier version, which did not reduce the default number of ids
        let unknown = published.boot_id.is_none().then_some(u32::MAX);
        let counts = published.resources.iter();
        let counts = counts.filter_map(|(name, it)| Some((name.clone(), it.ids.or(unknown)?)));
        Self {
            resources: resources.collect(),
            counts: counts.collect(),
        }
    }

    /// Returns the number of ids that `resource` has had since the node's boot. 0: the number is unknown.
    pub(super) fn count(&self, resource: &str) -> u32 {
        self.counts.get(resource).copied().unwrap_or(0)
    }

    pub(super) fn device(&self, resource: &str, address: &DeviceAddress) -> Option<&Remembered> {
        self.resources.get(resource)?.get(address)
    }
}

/// Returns the physical functions of the virtual functions and sub-functions in `offers`. A function's address does not
/// show its physical function.
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
