// SPDX-License-Identifier: Apache-2.0
//! The GID table of an RDMA port.

use rdma_netns::GidKind;
use std::{collections::BTreeSet, net::IpAddr};

/// An address with GIDs, and its netdev by [`crate::netdev::Netdev::id`]. If two netdevs have the same address, each
/// has its own GIDs.
pub(crate) type Owner = (u64, IpAddr);

#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) places: Vec<Option<Place>>,
    /// Addresses for which the table had no room. The kernel does not try them again.
    missed: BTreeSet<Owner>,
}

/// An entry of a GID table.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) owner: Owner,
    pub(crate) kind: GidKind,
    /// Number of reads of the table that do not show the entry yet.
    pub(crate) hidden: u32,
}

impl Table {
    /// Returns true if the table has the address, or had no room for it.
    pub(crate) fn knows(&self, owner: &Owner) -> bool {
        let mut taken = self.places.iter().flatten();
        self.missed.contains(owner) || taken.any(|place| place.owner == *owner)
    }

    /// Removes the addresses that are not in `owners`.
    pub(crate) fn keep(&mut self, owners: &[Owner]) {
        for place in &mut self.places {
            if place.as_ref().is_some_and(|p| !owners.contains(&p.owner)) {
                *place = None;
            }
        }
        self.missed.retain(|owner| owners.contains(owner));
    }

    /// Adds a GID in the first free entry below `size` (`find_gid()`). If no entry is free, the address stays without a
    /// GID: the kernel only logs this.
    pub(crate) fn add(&mut self, owner: Owner, kind: GidKind, size: usize, hidden: u32) {
        self.places.resize(size.max(self.places.len()), None);
        let free = self.places[..size].iter_mut().find(|place| place.is_none());
        match free {
            Some(place) => {
                *place = Some(Place {
                    owner,
                    kind,
                    hidden,
                });
            }
            None => {
                self.missed.insert(owner);
            }
        }
    }
}
