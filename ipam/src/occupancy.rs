// SPDX-License-Identifier: Apache-2.0
//! Which addresses are not to be had: those that are leased, and those that other machines on the
//! network have.
//!
//! Of other machines only traces are seen here: an address was found to be in use a while ago, a
//! neighbour table has an entry. Both can be old. So such an address is given when no other is left:
//! whoever sets it asks on the wire first.

use crate::{
    choose::{self, Choice, Occupancy, Segment},
    forbidden::Forbidden,
    range::Pool,
    store::{AVOIDED, Disk, Locked, REFUSED, StoreError},
};
use std::{collections::BTreeSet, net::IpAddr, time::Duration};

/// Leases and traces.
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

/// The first free address of `pool`, as [`choose::choose`] finds it; one that another machine may
/// have only when there is no other.
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
    let perhaps = Taken {
        locked,
        neighbours: &BTreeSet::new(),
        avoided: REFUSED,
    };
    choose::choose(pool, forbidden, tries, segments, &perhaps)
}
