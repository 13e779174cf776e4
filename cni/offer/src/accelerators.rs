// SPDX-License-Identifier: Apache-2.0
//! Accelerators to which a container's NICs should be close, and the distance of each NIC from these accelerators.

use crate::{OfferedDevice, distance::Distance};
use rdma_netns::{Accelerator, DeviceAddress, Inventory};
use std::collections::{BTreeMap, BTreeSet};

/// Accelerators to which the chosen NICs should be close.
#[derive(Clone, Debug)]
pub struct Accelerators<'a> {
    /// True if `all` are the container's own accelerators. False if `all` are the accelerators of the whole node.
    pub own: bool,
    /// The accelerators.
    pub all: Vec<&'a Accelerator>,
    /// CPU socket of each NUMA node.
    pub sockets: &'a BTreeMap<u32, u32>,
}

/// Distance of a device from its nearest accelerators.
pub(super) struct Near {
    pub(super) distance: Distance,
    /// Indices of the nearest accelerators in [`Accelerators::all`]. Empty if `distance` is [`Distance::Far`].
    pub(super) accelerators: Vec<usize>,
}

impl<'a> Accelerators<'a> {
    /// Returns all accelerators of the node, for a container whose accelerators are unknown.
    pub fn of_node(inventory: &'a Inventory) -> Self {
        Self {
            own: false,
            all: inventory.accelerators.iter().collect(),
            sockets: &inventory.sockets,
        }
    }

    /// Returns the container's accelerators, which have the addresses `own`. If none of them is on the node, returns
    /// all accelerators of the node.
    pub fn of_container(inventory: &'a Inventory, own: &BTreeSet<DeviceAddress>) -> Self {
        let node = Self::of_node(inventory);
        let mut all = node.all.clone();
        all.retain(|it| own.contains(&it.address));
        match all.is_empty() {
            true => node,
            false => Self {
                own: true,
                all,
                ..node
            },
        }
    }

    /// Returns for each of `devices` its nearest accelerators.
    pub(super) fn near(&self, devices: &[OfferedDevice]) -> Vec<Near> {
        devices.iter().map(|device| self.nearest(device)).collect()
    }

    fn nearest(&self, device: &OfferedDevice) -> Near {
        let distance = |accelerator: &&Accelerator| {
            let paths = [Some(&device.path), device.data_direct.as_ref()];
            let between = |path| {
                Distance::between(
                    (path, device.numa_node),
                    (&accelerator.path, accelerator.numa_node),
                    self.sockets,
                )
            };
            let least = paths.into_iter().flatten().map(between).min();
            least.unwrap_or(Distance::Far)
        };
        let distances: Vec<Distance> = self.all.iter().map(distance).collect();
        let least = distances.iter().copied().min().unwrap_or(Distance::Far);
        let nearest = |(_, distance): &(usize, Distance)| *distance == least;
        let of_least = distances.into_iter().enumerate().filter(nearest);
        Near {
            distance: least,
            accelerators: match least {
                Distance::Far => Vec::new(),
                _ => of_least.map(|(place, _)| place).collect(),
            },
        }
    }
}
