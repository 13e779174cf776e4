//! Finding a recorded device again: under another name, with another index, in the pod or
//! back home.

use super::Obstacle;
use crate::attachment::Rail;
use rdma_netns::{Link, Observed, Place, RdmaDevice};

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
    let places = [Place::Pod, Place::Host];
    for place in places {
        let Some(namespace) = observed.at(place) else {
            continue;
        };
        let found = namespace
            .links
            .iter()
            .filter_map(|link| Some((resemblance(rail, home, place, link)?, link)))
            .max_by_key(|(resemblance, _)| *resemblance);
        if let Some((_, link)) = found {
            return Ok(Located::At(place, link));
        }
    }
    match &home.parent {
        Some(parent) if observed.device(parent).is_some_and(|d| d.driver.is_some()) => {
            Err(Obstacle::NotHome {
                device: home.name.to_string(),
            })
        }
        _ => Ok(Located::Gone),
    }
}

/// How surely `link` is the one that was `home`; none: it is not.
fn resemblance(rail: &Rail, home: &Link, place: Place, link: &Link) -> Option<u32> {
    let traits = [
        link.index == home.index,
        link.name == home.name || link.name == rail.pod_name,
        link.mac == home.mac,
        link.permanent_mac == home.permanent_mac,
    ];
    let score = traits.iter().map(|fits| u32::from(*fits)).sum();
    let is_it = match (&home.parent, place) {
        // several netdevs of one PCI function differ in their burnt-in address
        (Some(_), _) => {
            link.parent == home.parent
                && (link.permanent_mac == home.permanent_mac || link.permanent_mac.is_none())
        }
        _ if link.parent.is_some() || link.kind != home.kind => false,
        (None, Place::Pod) => match rail.pod_index {
            Some(index) => link.index == index,
            None => link.name == rail.pod_name && link.mac == home.mac,
        },
        (None, Place::Host) => traits[..3].iter().filter(|fits| **fits).count() >= 2,
    };
    is_it.then_some(score)
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
