// SPDX-License-Identifier: Apache-2.0
//! The netdev that pods are attached to, where `parents` of a resource says which: the device's own, the bond that
//! this is a port of, or a VLAN on that.
//!
//! A VLAN's carrier is that of what it lies on, which is the device's own health. So only what somebody did to the VLAN
//! is looked at here: it was removed, or set down.

use crate::conf::{ResourceConf, selector::Text};
use rdma_netns::{Function, LinkType};

/// What `parents` say of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parent {
    /// Nothing: `rdma-cni` attaches to what the device has.
    Unsaid,
    /// Pods are attached to this netdev.
    At(String),
    /// It is there, and is no use: why.
    Unusable(String, String),
    /// No netdev fits: why.
    Missing(String),
    /// More than one does: why.
    Several(String),
}

impl Parent {
    pub(super) fn of(resource: &ResourceConf, function: &Function) -> Self {
        if resource.parents.is_empty() {
            return Self::Unsaid;
        }
        let candidates = candidates(function);
        let fits = |name: &str| resource.parents.iter().any(|it| it.fits(name));
        let found: Vec<_> = candidates.iter().filter(|(name, _)| fits(name)).collect();
        let names = |of: &mut dyn Iterator<Item = &(String, bool)>| -> String {
            let names: Vec<&str> = of.map(|(name, _)| name.as_str()).collect();
            names.join(", ")
        };
        let wanted = wanted(&resource.parents);
        match found.as_slice() {
            [(name, true)] => Self::At(name.clone()),
            [(name, false)] => Self::Unusable(
                name.clone(),
                format!("{name} is down; ip link set dev {name} up"),
            ),
            [] if candidates.is_empty() => Self::Missing(format!(
                "it has no Ethernet netdev on the host, and parents wants {wanted}"
            )),
            [] => Self::Missing(format!(
                "no netdev of it is {wanted}, as parents wants; there is {}",
                names(&mut candidates.iter())
            )),
            several => Self::Several(format!(
                "parents ({wanted}) fits {}, and must fit one netdev of a device",
                names(&mut several.iter().copied())
            )),
        }
    }

    /// The netdev, if it is known.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::At(name) | Self::Unusable(name, _) => Some(name),
            Self::Unsaid | Self::Missing(_) | Self::Several(_) => None,
        }
    }

    /// Why no pod can be attached, if that is so.
    pub(super) fn fault(&self) -> Option<&str> {
        match self {
            Self::Unusable(_, why) | Self::Missing(why) | Self::Several(why) => Some(why),
            Self::Unsaid | Self::At(_) => None,
        }
    }
}

/// `bond0.100 or bond1.100`
pub(super) fn wanted(parents: &[Text]) -> String {
    let texts: Vec<String> = parents.iter().map(ToString::to_string).collect();
    texts.join(" or ")
}

/// The netdevs that pods of the device can be attached to, and whether each can bear children now. What the device
/// itself has need not be up: that is its own health.
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
