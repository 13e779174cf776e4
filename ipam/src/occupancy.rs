// SPDX-License-Identifier: Apache-2.0
//! The unavailable addresses: leased ones, and those of other machines on the network.
//!
//! Of other machines, the host has only traces: an address was in use a while ago, or a neighbour table has an entry.
//! Both may be outdated. Such an address is therefore assigned if no other one is left: the caller probes the wire
//! before it uses an address.

use crate::{
    choose::{self, Choice, Occupancy, Segment},
    forbidden::Forbidden,
    range::Pool,
    store::{AVOIDED, Disk, Locked, REFUSED, StoreError},
};
use std::{collections::BTreeSet, net::IpAddr, time::Duration};

/// Leases, and traces of other machines.
#[derive(Debug)]
pub struct Taken<'a, D> {
    locked: &'a Locked<'a, D>,
    neighbours: &'a BTreeSet<IpAddr>,
    avoided: Duration,
}

impl<D: Disk> Occupancy for Taken<'_, D> {
    type Error = StoreError;

    fn is_taken(&self, ip: IpAddr) -> Result<bool, StoreError> {
        Ok(self.neighbours.contains(&ip)
            || self.locked.is_held(ip)?
            || self.locked.is_avoided(ip, self.avoided)?)
    }

    fn all_taken(&self) -> Result<BTreeSet<IpAddr>, StoreError> {
        let mut taken = self.locked.store().taken(self.avoided)?;
        taken.extend(self.neighbours);
        Ok(taken)
    }
}

/// Returns the first free address of `pool`, as [`choose::choose`] does. An address with a trace of another machine
/// is chosen only if there is no other.
pub fn choose<D: Disk>(
    locked: &Locked<'_, D>,
    neighbours: &BTreeSet<IpAddr>,
    pool: &Pool,
    forbidden: &Forbidden,
    tries: impl Iterator<Item = u128> + Clone,
    segments: &[Segment],
) -> Result<Choice, StoreError> {
    let free = Taken {
        locked,
        neighbours,
        avoided: AVOIDED,
    };
    let choice = choose::choose(pool, forbidden, tries.clone(), segments, &free)?;
    if choice.is_free() {
        return Ok(choice);
    }
    let without_traces = Taken {
        locked,
        neighbours: &BTreeSet::new(),
        avoided: REFUSED,
    };
    choose::choose(pool, forbidden, tries, segments, &without_traces)
}
