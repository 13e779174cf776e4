// SPDX-License-Identifier: Apache-2.0
//! Finding a recorded device again: under another name, with another index, in the pod or
//! back home.

use super::Obstacle;
use attachments::{Rail, Shared, Sibling};
use rdma_netns::{Device, Link, Observed, Place, RdmaDevice};

/// Where a recorded device is now.
#[derive(Debug)]
pub(super) enum Located<'a, T> {
    /// In this namespace.
    At(Place, &'a T),
    /// It exists no more: a virtual netdev ends with its namespace, a VF can be removed.
    Gone,
}

/// Finds the netdev that was `home` on the host.
pub(super) fn link<'a>(
    rail: &Rail,
    home: &Link,
    observed: &'a Observed,
) -> Result<Located<'a, Link>, Obstacle> {
    let links = [Place::Host, Place::Pod].into_iter().flat_map(|place| {
        let links = observed.at(place).map(|namespace| &namespace.links);
        links.into_iter().flatten().map(move |link| (place, link))
    });
    let found = links
        .filter(|(place, link)| match &home.parent {
            Some(_) => link.parent == home.parent && !is_sibling(rail, *place, link),
            None => is_virtual_home(rail, home, *place, link),
        })
        .max_by_key(|(_, link)| resemblance(rail, home, link));
    if let Some((place, link)) = found {
        return Ok(Located::At(place, link));
    }
    let exists = match &home.parent {
        Some(parent) => observed.device(parent).is_some_and(has_netdev_driver),
        // hardware on another bus than PCI does not end with a namespace
        None => home.kind.is_none(),
    };
    match exists {
        true => Err(Obstacle::NotHome {
            device: home.name.to_string(),
        }),
        false => Ok(Located::Gone),
    }
}

/// Whether a netdev can be expected of `device`: not when it was given to a virtual machine.
fn has_netdev_driver(device: &Device) -> bool {
    device.driver.is_some() && !device.is_passed_through()
}

/// Whether `link` is another netdev of the same PCI function, at its place on the host.
fn is_sibling(rail: &Rail, place: Place, link: &Link) -> bool {
    let is_it = |it: &Sibling| it.name == link.name || it.index == link.index;
    place == Place::Host && rail.siblings.iter().any(is_it)
}

/// How much `link` is like `home`, to tell several netdevs of one PCI function apart. None of
/// these traits is sure: a pod can change the first two, igbvf the burnt-in address too, and
/// an index that is taken is not kept.
fn resemblance(rail: &Rail, home: &Link, link: &Link) -> usize {
    let traits = [
        link.name == home.name || link.name == rail.pod_name,
        link.mac == home.mac,
        link.permanent_mac == home.permanent_mac,
        link.index == home.index,
    ];
    traits.into_iter().filter(|fits| *fits).count()
}

/// Whether `link`, which has no hardware to be known by, is the one that was `home`.
fn is_virtual_home(rail: &Rail, home: &Link, place: Place, link: &Link) -> bool {
    if link.parent.is_some() || link.kind != home.kind {
        return false;
    }
    match (place, rail.pod_index) {
        (Place::Pod, Some(index)) => link.index == index,
        (Place::Pod, None) => {
            let traits = [
                link.index == home.index,
                link.name == rail.pod_name,
                link.mac == home.mac,
            ];
            traits.into_iter().filter(|fits| *fits).count() >= 2
        }
        (Place::Host, _) => {
            let name = link.name == home.name || link.name == rail.pod_name;
            let traits = [link.index == home.index, name, link.mac == home.mac];
            traits.into_iter().filter(|fits| *fits).count() >= 2
        }
    }
}

/// Finds the pod's child of a netdev that stayed on the host. The pod can have renamed it, and
/// can have made other children of the same parent only from outside.
pub(super) fn child<'a>(rail: &Rail, shared: &Shared, observed: &'a Observed) -> Option<&'a Link> {
    let links = observed.pod.iter().flat_map(|pod| &pod.links);
    let children = links.filter(|link| {
        link.lower == Some(shared.parent_index)
            && link.kind.as_deref() == Some(shared.child.kind())
            && (link.name == rail.pod_name || rail.pod_index == Some(link.index))
    });
    children.max_by_key(|link| rail.pod_index == Some(link.index))
}

/// The RDMA device of `rail`, if it is on the host, under whatever name.
pub fn rdma_on_host<'a>(rail: &Rail, observed: &'a Observed) -> Option<&'a RdmaDevice> {
    match rdma(rail.rdma.as_ref()?, observed) {
        Ok(Located::At(Place::Host, device)) => Some(device),
        _ => None,
    }
}

/// The RDMA device of `rail`, on the host or in the pod, under whatever name.
pub fn rdma_anywhere<'a>(rail: &Rail, observed: &'a Observed) -> Option<&'a RdmaDevice> {
    match rdma(rail.rdma.as_ref()?, observed) {
        Ok(Located::At(_, device)) => Some(device),
        _ => None,
    }
}

/// Finds the RDMA device that was `home` on the host.
pub(super) fn rdma<'a>(
    home: &RdmaDevice,
    observed: &'a Observed,
) -> Result<Located<'a, RdmaDevice>, Obstacle> {
    let is_it = |device: &&RdmaDevice| match &home.parent {
        Some(parent) => device.parent.as_ref() == Some(parent),
        None => device.index == home.index && device.node_guid == home.node_guid,
    };
    for place in [Place::Pod, Place::Host] {
        let devices = observed.at(place).map(|namespace| &namespace.rdma);
        if let Some(device) = devices.and_then(|devices| devices.iter().find(is_it)) {
            return Ok(Located::At(place, device));
        }
    }
    match home
        .parent
        .as_ref()
        .and_then(|parent| observed.device(parent))
    {
        Some(device) if !device.rdma.is_empty() => Err(Obstacle::NotHome {
            device: home.name.clone(),
        }),
        _ => Ok(Located::Gone),
    }
}
