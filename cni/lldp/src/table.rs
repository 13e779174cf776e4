// SPDX-License-Identifier: Apache-2.0
//! The neighbours and their age. The caller passes the time.
//!
//! A netdev that receives frames keeps its neighbour until the neighbour announces that it stops, or until the
//! neighbour's TTL expires. Meanwhile the table ignores frames of other neighbours, so that two agents behind one port
//! do not alternate, and a pod whose virtual function sends LLDP does not replace the switch. A new neighbour replaces
//! the last one at once only after a restart of the daemon, a loss of carrier, or a return of the netdev from a pod.
//! [`Table::take`] has other rules.

use crate::{Neighbour, Seen, Switches, switches::functions};
use rdma_netns::{DeviceAddress, Inventory, LinkType};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// A netdev of the host that can receive LLDP frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name.
    pub netdev: String,
    /// True if the netdev has carrier.
    pub has_carrier: bool,
}

impl Port {
    /// Returns the netdevs that receive LLDP frames for the RDMA NICs in `inventory`, by the netdev's function. Omits
    /// InfiniBand netdevs. A virtual function or sub-function uses the netdev of its physical function, and a bond uses
    /// the netdevs of all its ports.
    pub fn all(inventory: &Inventory) -> BTreeMap<DeviceAddress, Self> {
        let with_rdma = inventory.functions.iter().filter(|it| !it.hcas.is_empty());
        let functions = with_rdma.flat_map(|it| functions(&it.device.address, inventory));
        let functions: BTreeSet<DeviceAddress> = functions.collect();
        let port = |address: DeviceAddress| {
            let netdev = inventory.function(&address)?.netdevs.first()?;
            let port = Self {
                netdev: netdev.name.clone(),
                has_carrier: netdev.carrier,
            };
            (netdev.link_type != LinkType::Infiniband).then_some((address, port))
        };
        functions.into_iter().filter_map(port).collect()
    }
}

#[derive(Clone, Debug)]
struct Entry {
    seen: Seen,
    /// Time at which the neighbour's TTL expires. `None`: the netdev is not on the host, or the time cannot be
    /// represented.
    until: Option<Instant>,
    /// True if a frame of another neighbour on this netdev replaces this neighbour at once.
    is_doubtful: bool,
}

impl Entry {
    fn new(netdev: &str, neighbour: Neighbour, from: Instant) -> Self {
        Self {
            until: from.checked_add(Duration::from_secs(neighbour.ttl.into())),
            seen: Seen {
                netdev: netdev.to_owned(),
                neighbour,
                is_away: false,
            },
            is_doubtful: false,
        }
    }
}

/// Neighbours of a node's NICs.
#[derive(Clone, Debug, Default)]
pub struct Table {
    entries: BTreeMap<DeviceAddress, Entry>,
    ports: BTreeMap<DeviceAddress, Port>,
}

impl Table {
    /// Returns a table with the neighbours that an earlier daemon saved. Their TTL begins again. A frame of another
    /// neighbour on the same netdev replaces such a neighbour at once.
    pub fn restored(switches: &Switches, now: Instant) -> Self {
        let entry = |(address, seen): (&DeviceAddress, &Seen)| {
            let mut entry = Entry::new(&seen.netdev, seen.neighbour.clone(), now);
            entry.is_doubtful = true;
            (address.clone(), entry)
        };
        Self {
            entries: switches.0.iter().map(entry).collect(),
            ports: BTreeMap::new(),
        }
    }

    /// Updates the netdevs from `inventory`. A netdev that is in a pod keeps its last neighbour. The neighbour's TTL
    /// begins again when the netdev returns. Removes neighbours of functions that the node no longer has.
    pub fn follow(&mut self, inventory: &Inventory, now: Instant) {
        self.ports = Port::all(inventory);
        self.entries
            .retain(|address, _| inventory.function(address).is_some());
        for (address, entry) in &mut self.entries {
            let port = self.ports.get(address);
            let was_away = std::mem::replace(&mut entry.seen.is_away, port.is_none());
            match port {
                None => entry.until = None,
                Some(port) if was_away => {
                    *entry = Entry::new(&port.netdev, entry.seen.neighbour.clone(), now);
                    entry.is_doubtful = true;
                }
                Some(port) => {
                    entry.seen.netdev.clone_from(&port.netdev);
                    entry.is_doubtful |= !port.has_carrier;
                }
            }
        }
    }

    /// Returns the names of the netdevs that can receive LLDP frames.
    pub fn netdevs(&self) -> BTreeSet<&str> {
        self.ports.values().map(|it| it.netdev.as_str()).collect()
    }

    /// Updates the table with a neighbour whose frame `netdev` has received.
    pub fn receive(&mut self, netdev: &str, neighbour: Neighbour, now: Instant) {
        let ports = self.ports.iter().filter(|(_, it)| it.netdev == netdev);
        for (address, _) in ports {
            let held = self.entries.get(address);
            let is_same = held.is_none_or(|it| it.seen.neighbour.is_same_port(&neighbour));
            if neighbour.ttl == 0 {
                if is_same {
                    self.entries.remove(address);
                }
            } else if is_same || held.is_some_and(|it| it.is_doubtful) {
                let entry = Entry::new(netdev, neighbour.clone(), now);
                self.entries.insert(address.clone(), entry);
            }
        }
    }

    /// Updates the table with `all` neighbours in the output of another LLDP agent. The output is `age` old. Uses the
    /// first neighbour of each netdev, also in place of another neighbour. Removes the neighbour of a netdev on the
    /// host if `all` has no neighbour of this netdev, or if the TTL has expired.
    pub fn take(&mut self, all: &[(String, Neighbour)], age: Duration, now: Instant) {
        for (address, port) in &self.ports {
            let first = all.iter().find(|(netdev, _)| *netdev == port.netdev);
            let entry = first.and_then(|(netdev, neighbour)| {
                let left = Duration::from_secs(neighbour.ttl.into()).checked_sub(age)?;
                let mut entry = Entry::new(netdev, neighbour.clone(), now);
                entry.until = now.checked_add(left);
                Some(entry)
            });
            match entry {
                Some(entry) => drop(self.entries.insert(address.clone(), entry)),
                None => drop(self.entries.remove(address)),
            }
        }
    }

    /// Removes neighbours whose TTL has expired.
    pub fn expire(&mut self, now: Instant) {
        self.entries
            .retain(|_, it| it.until.is_none_or(|until| until > now));
    }

    /// Returns the time at which the next TTL expires.
    pub fn deadline(&self) -> Option<Instant> {
        self.entries.values().filter_map(|it| it.until).min()
    }

    /// Returns the neighbours.
    pub fn switches(&self) -> Switches {
        let entries = self.entries.iter();
        Switches(
            entries
                .map(|(address, it)| (address.clone(), it.seen.clone()))
                .collect(),
        )
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
