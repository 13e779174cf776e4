// SPDX-License-Identifier: Apache-2.0
//! What was seen of NICs before, in this process: one look does not tell that nobody configures a
//! NIC, which has no address in the middle of DHCP.

use super::ownership::ForeignConfig;
use rdma_netns::{DeviceAddress, InterfaceName};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// What was seen of NICs. A netdev with another index is another one: its driver was reloaded.
#[derive(Debug)]
pub(super) struct History {
    /// For how long a NIC has to be up without an address before it is nobody's.
    quiet: Duration,
    /// Netdevs that had somebody's address, and which, in words.
    foreign: BTreeMap<DeviceAddress, (u32, String)>,
    /// Since when netdevs are up, and nobody has given them an address.
    bare: BTreeMap<DeviceAddress, (u32, Instant)>,
}

/// Why a NIC without an address is not brought up now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Blocker {
    /// It is somebody's: it had an address.
    Foreign(String),
    /// It may be somebody's.
    Early(String),
}

impl History {
    /// Nothing was seen yet.
    pub(super) fn new(quiet: Duration) -> Self {
        Self {
            quiet,
            foreign: BTreeMap::new(),
            bare: BTreeMap::new(),
        }
    }

    /// Forgets NICs that are gone.
    pub(super) fn retain(&mut self, is_there: impl Fn(&DeviceAddress) -> bool) {
        self.foreign.retain(|address, _| is_there(address));
        self.bare.retain(|address, _| is_there(address));
    }

    /// The NIC's netdev is somebody else's.
    pub(super) fn configured(&mut self, nic: &DeviceAddress, index: u32, by: &ForeignConfig) {
        self.bare.remove(nic);
        if let ForeignConfig::Address { netdev, ip, prefix } = by {
            let had = format!("{netdev} had {ip}/{prefix} from somebody else");
            self.foreign.insert(nic.clone(), (index, had));
        }
    }

    /// Nobody else has configured the NIC's netdev as far as is to be seen now. `is_new`: it is up,
    /// and was not brought up by us.
    pub(super) fn bare(
        &mut self,
        nic: &DeviceAddress,
        (index, netdev): (u32, &InterfaceName),
        is_new: bool,
    ) -> Option<Blocker> {
        if let Some((_, had)) = self.foreign.get(nic).filter(|it| it.0 == index) {
            return Some(Blocker::Foreign(had.clone()));
        }
        self.foreign.remove(nic);
        if !is_new {
            self.bare.remove(nic);
            return None;
        }
        let now = Instant::now();
        let bare = self.bare.entry(nic.clone()).or_insert((index, now));
        if bare.0 != index {
            *bare = (index, now);
        }
        (bare.1.elapsed() < self.quiet).then(|| {
            let quiet = self.quiet;
            Blocker::Early(format!(
                "{netdev} is up without an address: it is given one if nobody else does so within \
                 {quiet:?}"
            ))
        })
    }
}
