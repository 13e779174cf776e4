// SPDX-License-Identifier: Apache-2.0
//! Determines whether another program configured a NIC, from the state of its netdev and of the netdevs on top of it.
//! This module has no I/O.

use super::record::{Given, Record};
use rdma_netns::{Address, Link, Namespace, Route};
use std::net::IpAddr;

/// Configuration of a netdev by another program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct ForeignConfig {
    /// Sentence about the configuration.
    pub why: String,
    /// Sentence about the address of the other program, for a later time. `None`: the configuration is not an address.
    pub had: Option<String>,
}

/// Returns the configuration of another program on `link`. The daemon does not configure such a netdev. `record` is the
/// daemon's own earlier configuration.
///
/// - Link-local addresses, and addresses and routes that the kernel makes, do not count.
/// - IPv6 does not count if there is a record.
/// - Only a master of the netdev counts while the netdev has the address that the daemon assigned, or while a change of
///   this address or a release is incomplete.
pub fn foreign_config(
    link: &Link,
    host: &Namespace,
    record: Option<&Record>,
) -> Option<ForeignConfig> {
    let netdev = &link.name;
    let config = |why| ForeignConfig { why, had: None };
    if let Some(master) = link.master {
        let master = host.link_by_index(master);
        let master = master.map_or("another netdev", |it| &it.name);
        return Some(config(format!("{netdev} is a port of {master}")));
    }
    let given = record.map(|record| &record.given);
    let is_given =
        |it: &Address, given: &Given| it.same_as(&given.address) && it.flags == given.address.flags;
    let has_ours = |given| link.addresses.iter().any(|it| is_given(it, given));
    let is_incomplete = |it: &Record| it.changes_address() || !it.lost.is_empty();
    if given.is_some_and(has_ours) || record.is_some_and(is_incomplete) {
        return None;
    }
    let counts = |ip: IpAddr| ip.is_ipv4() || record.is_none();
    let is_somebodys = |it: &&Address| counts(it.ip) && is_configured(it);
    if let Some(first) = link.addresses.iter().find(is_somebodys) {
        let address = format!("{}/{}", first.ip, first.prefix);
        return Some(ForeignConfig {
            why: format!("{netdev} has {address} already"),
            had: Some(format!("{netdev} had {address}, which another program set")),
        });
    }
    if let Some(upper) = link.above(&host.links) {
        let why = format!("{} uses {netdev} as its lower device", upper.name);
        return Some(config(why));
    }
    let was_given = |it: &Route| {
        record.is_some_and(|record| record.gifts().any(|given| given.routes.contains(it)))
    };
    let mut routes = link.routes.iter();
    let Route {
        destination,
        prefix,
        ..
    } = routes.find(|it| counts(it.destination) && !link.makes_itself(it) && !was_given(it))?;
    let why = format!("{netdev} has a route to {destination}/{prefix} already");
    Some(config(why))
}

/// Returns true if a program has assigned this address. Link-local addresses do not count.
fn is_configured(address: &Address) -> bool {
    let is_link_local = match address.ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !is_link_local && !address.automatic
}
