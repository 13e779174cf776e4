// SPDX-License-Identifier: Apache-2.0
//! Parent netdev of pods' child netdevs, if the resource has `parents`: the device's own netdev, its bond, or a VLAN on
//! the netdev or the bond.
//!
//! A VLAN has the carrier of the netdev below it, and this carrier is part of the device's health already. This module
//! therefore checks only whether an administrator has removed the VLAN or set it down.

use daemon_conf::{ResourceConf, selector::Text};
use rdma_netns::{Function, LinkType};

/// Result of matching `parents` for a device. With the default value, the resource has no `parents`, so `rdma-cni`
/// selects the netdev.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parent {
    /// The only netdev that fits.
    pub(super) name: Option<String>,
    /// Reason why no pod can use the parent netdev. `None`: pods can use it.
    pub(super) fault: Option<String>,
    /// True if no netdev fits.
    pub(super) is_missing: bool,
}

impl Parent {
    pub(super) fn of(resource: &ResourceConf, function: &Function) -> Self {
        if resource.parents.is_empty() {
            return Self::default();
        }
        let candidates = candidates(function);
        let fits = |name: &str| resource.parents.iter().any(|it| it.fits(name));
        let found: Vec<_> = candidates.iter().filter(|(name, _)| fits(name)).collect();
        let names = |of: &mut dyn Iterator<Item = &(String, bool)>| -> String {
            let names: Vec<&str> = of.map(|(name, _)| name.as_str()).collect();
            names.join(", ")
        };
        let required = required(&resource.parents);
        let fault = match found.as_slice() {
            [(_, true)] => None,
            [(name, false)] => Some(format!("{name} is down; run ip link set dev {name} up")),
            [] if candidates.is_empty() => Some(format!(
                "it has no Ethernet netdev on the host, and parents requires {required}"
            )),
            [] => Some(format!(
                "none of its netdevs ({}) matches parents ({required})",
                names(&mut candidates.iter())
            )),
            several => Some(format!(
                "parents ({required}) matches {}, and must match only one netdev of a device",
                names(&mut several.iter().copied())
            )),
        };
        let name = match found.as_slice() {
            [(name, _)] => Some(name.clone()),
            _ => None,
        };
        Self {
            name,
            fault,
            is_missing: found.is_empty(),
        }
    }
}

/// Joins the patterns, such as `bond0.100 or bond1.100`.
pub(super) fn required(parents: &[Text]) -> String {
    let texts: Vec<String> = parents.iter().map(ToString::to_string).collect();
    texts.join(" or ")
}

/// Returns the possible parent netdevs of the device. Each has a flag that is true if the netdev can have children at
/// present. The flag of a bond, and of a netdev without a bond, is always true: their state is part of the device's
/// health.
fn candidates(function: &Function) -> Vec<(String, bool)> {
    let mut found: Vec<(String, bool)> = vec![];
    let netdevs = function.netdevs.iter();
    for netdev in netdevs.filter(|it| it.link_type == LinkType::Ether) {
        let base = std::iter::once((netdev.base().to_owned(), true));
        let vlans = netdev.vlans.iter().map(|it| (it.name.clone(), it.up));
        for candidate in base.chain(vlans) {
            if !found.contains(&candidate) {
                found.push(candidate);
            }
        }
    }
    found
}
