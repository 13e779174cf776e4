// SPDX-License-Identifier: Apache-2.0
//! The accelerators that a container's NICs had better be near to, and how near each NIC is.

use super::{OfferedDevice, distance::Distance};
use rdma_netns::{Accelerator, DeviceAddress, Inventory};
use std::collections::{BTreeMap, BTreeSet};

/// Accelerators that come into question.
#[derive(Clone, Debug)]
pub struct Accelerators<'a> {
    /// They are the container's own; else any of the node may be.
    pub own: bool,
    /// By address.
    pub all: Vec<&'a Accelerator>,
    /// The socket of each NUMA node.
    pub sockets: &'a BTreeMap<u32, u32>,
}

/// How near a device is to accelerators.
pub(super) struct Near {
    pub(super) distance: Distance,
    /// The nearest ones, by place.
    pub(super) accelerators: Vec<usize>,
}

impl<'a> Accelerators<'a> {
    /// All of the node: which of them the container has is not known.
    pub fn of_node(inventory: &'a Inventory) -> Self {
        Self {
            own: false,
            all: inventory.accelerators.iter().collect(),
            sockets: &inventory.sockets,
        }
    }

    /// Those at `own`, which are the container's; all of the node, where none of these is.
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

    /// For each of `devices` the accelerators that are nearest to it.
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
