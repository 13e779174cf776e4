// SPDX-License-Identifier: Apache-2.0
//! CHECK: checks that the attachment still has the addresses that ADD assigned.

use super::Node;
use crate::{
    conf::{Plan, Source},
    error::Error,
};
use cni_protocol::{SpecVersion, result};
use serde_json::Value;
use std::net::IpAddr;

/// Checks that every lease of ADD exists, and that the attachment has a lease for every address in `prevResult` that
/// this plugin assigned. Ignores addresses that other plugins added to the interface or removed from `prevResult`:
/// the CHECK of these plugins covers them.
pub fn check(node: &Node<'_>) -> Result<(), Error> {
    node.place.network.since("CHECK", SpecVersion::V0_4_0)?;
    let owner = node.owner()?;
    let reported = reported(node.place.network.prev_result.as_ref(), &owner.interface);
    let nothing = || Error::Drift(vec![format!("{owner} holds no address")]);
    let locked = node.store.lock_existing()?.ok_or_else(nothing)?;
    let expected = match locked.noted(&owner)? {
        Some(ips) => ips,
        None => locked.leases_of(&owner)?,
    };
    if expected.is_empty() {
        return Err(nothing());
    }
    let mut drift = vec![];
    let others = reported
        .iter()
        .flatten()
        .filter(|it| !expected.contains(it));
    for ip in expected.iter().chain(others) {
        match locked.lease(*ip)? {
            Some(lease) if lease.is_of(&owner) => {}
            Some(other) => drift.push(format!("{ip} is held by {other}, not by {owner}")),
            None if expected.contains(ip) => drift.push(format!("the lease of {ip} is gone")),
            // without a lease, the next ADD may assign the address to another pod
            None if is_in_ranges(node, *ip) => drift.push(format!(
                "prevResult has on {} the address {ip}, which is not leased",
                owner.interface
            )),
            None => {}
        }
    }
    match drift.is_empty() {
        true => Ok(()),
        false => Err(Error::Drift(drift)),
    }
}

/// Returns the addresses of `interface` in the chain's result. The result of an IPAM plugin has no interfaces, so all
/// of its addresses are returned. Returns `None` if the configuration has no `prevResult`, or if `prevResult` has other
/// interfaces only.
fn reported(previous: Option<&Value>, interface: &str) -> Option<Vec<IpAddr>> {
    let previous = previous?;
    if let Some(found) = result::find_interface(previous, interface) {
        return Some(found.addresses.into_iter().map(|(ip, _)| ip).collect());
    }
    let is_bare = previous["interfaces"].as_array().is_none_or(Vec::is_empty);
    let ips = previous["ips"].as_array().filter(|_| is_bare)?;
    let ips = ips.iter().filter_map(|ip| {
        let (ip, _) = ip["address"].as_str()?.split_once('/')?;
        ip.parse().ok()
    });
    Some(ips.collect())
}

fn is_in_ranges(node: &Node<'_>, ip: IpAddr) -> bool {
    match Plan::parse(node.raw, node.environment).map(|plan| plan.source) {
        Ok(Source::Ranges(pools)) => pools.iter().any(|pool| pool.range_of(ip).is_some()),
        Ok(Source::Parent { .. }) | Err(_) => false,
    }
}
