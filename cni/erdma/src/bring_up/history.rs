// SPDX-License-Identifier: Apache-2.0
//! Earlier observations of NICs in this process. One observation cannot show that a NIC is unconfigured: a NIC also has
//! no address while DHCP runs.

use super::{RETRY_INTERVAL, State, ownership::ForeignConfig};
use rdma_netns::{DeviceAddress, InterfaceName};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Earlier observations of NICs. A netdev with a new index is a new netdev, as after a reload of the driver.
#[derive(Debug)]
pub(super) struct History {
    /// Time after which a NIC that is up without an address counts as unconfigured.
    quiet: Duration,
    /// Netdevs that had an address of another program, each with its index and a sentence about the address.
    foreign: BTreeMap<DeviceAddress, (u32, String)>,
    /// Netdevs that are up without an address, each with its index and the time of the first such observation.
    bare: BTreeMap<DeviceAddress, (u32, Instant)>,
}

impl History {
    pub(super) fn new(quiet: Duration) -> Self {
        Self {
            quiet,
            foreign: BTreeMap::new(),
            bare: BTreeMap::new(),
        }
    }

    /// Removes all NICs for which `is_there` returns false.
    pub(super) fn retain(&mut self, is_there: impl Fn(&DeviceAddress) -> bool) {
        self.foreign.retain(|address, _| is_there(address));
        self.bare.retain(|address, _| is_there(address));
    }

    /// Records that another program has configured the NIC's netdev. Remembers an address for later observations,
    /// because DHCP may remove and set it again.
    pub(super) fn configured(&mut self, nic: &DeviceAddress, index: u32, by: &ForeignConfig) {
        self.bare.remove(nic);
        if let Some(had) = &by.had {
            self.foreign.insert(nic.clone(), (index, had.clone()));
        }
    }

    /// Records that the NIC's netdev has no configuration of another program now. `is_new` is true if the netdev is up
    /// although the daemon did not bring it up. Returns an error with the NIC's state if the daemon must not bring the
    /// NIC up.
    pub(super) fn bare(
        &mut self,
        nic: &DeviceAddress,
        (index, netdev): (u32, &InterfaceName),
        is_new: bool,
    ) -> Result<(), State> {
        if let Some((_, had)) = self.foreign.get(nic).filter(|it| it.0 == index) {
            return Err(State::left_alone(had));
        }
        self.foreign.remove(nic);
        if !is_new {
            self.bare.remove(nic);
            return Ok(());
        }
        let now = Instant::now();
        let bare = self.bare.entry(nic.clone()).or_insert((index, now));
        if bare.0 != index {
            *bare = (index, now);
        }
        let quiet = self.quiet;
        if bare.1.elapsed() >= quiet {
            return Ok(());
        }
        let reason = format!(
            "{netdev} is up without an address: the daemon configures it if no other program does within {quiet:?}"
        );
        Err(State::waiting(reason, RETRY_INTERVAL))
    }
}
