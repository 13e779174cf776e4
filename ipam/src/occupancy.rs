// SPDX-License-Identifier: Apache-2.0
//! Determines unavailable addresses: leased addresses, and addresses of other machines on the network.
//!
//! The host has only indirect information about other machines: a recorded conflict, an entry in a neighbour table, or
//! the address of another node within the last month. This information may be outdated. So `rdma-ipam` assigns such an
//! address if no other address is free, but not within a minute after a conflict ([`REFUSED`]). The caller probes the
//! network before it uses an address.

use crate::{
    choose::{self, Choice, Occupancy, Segment},
    forbidden::Forbidden,
    range::Pool,
    store::{AVOIDED, Locked, REFUSED, StoreError},
};
use std::{collections::BTreeSet, net::IpAddr, time::Duration};

/// Leases, and information about other machines.
#[derive(Debug)]
pub struct Taken<'a> {
    locked: &'a Locked<'a>,
    /// Addresses of neighbours. `None`: only leases, and conflicts within [`REFUSED`], count.
    neighbours: Option<&'a BTreeSet<IpAddr>>,
}

impl Taken<'_> {
    fn avoided(&self) -> Duration {
        self.neighbours.map_or(REFUSED, |_| AVOIDED)
    }
}

impl Occupancy for Taken<'_> {
    type Error = StoreError;

    fn is_taken(&self, ip: IpAddr) -> Result<bool, StoreError> {
        let is_traced = match self.neighbours {
            Some(neighbours) => neighbours.contains(&ip) || self.locked.is_remembered(ip)?,
            None => false,
        };
        Ok(is_traced || self.locked.is_held(ip)? || self.locked.is_avoided(ip, self.avoided())?)
    }

    fn all_taken(&self) -> Result<BTreeSet<IpAddr>, StoreError> {
        let mut taken = self.locked.store().taken(self.avoided())?;
        if let Some(neighbours) = self.neighbours {
            taken.extend(neighbours);
            taken.extend(self.locked.store().remembered()?);
        }
        Ok(taken)
    }
}

/// Returns the first free address of `pool`, like [`choose::choose`]. Chooses an address that another machine may have
/// only if no other address is free, and the address had no conflict within [`REFUSED`].
pub fn choose(
    locked: &Locked<'_>,
    neighbours: &BTreeSet<IpAddr>,
    pool: &Pool,
    forbidden: &Forbidden,
    tries: impl Iterator<Item = u128> + Clone,
    segments: &[Segment],
) -> Result<Choice, StoreError> {
    let taken = |neighbours| Taken { locked, neighbours };
    let all = taken(Some(neighbours));
    match choose::choose(pool, forbidden, tries.clone(), segments, &all)? {
        // repeats the choice, and excludes only leased addresses and conflicts within `REFUSED`
        Choice::Full { .. } => choose::choose(pool, forbidden, tries, segments, &taken(None)),
        free => Ok(free),
    }
}
