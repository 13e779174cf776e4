// SPDX-License-Identifier: Apache-2.0
//! Number of pods that can share a device. Each address of a pod's child netdev takes an entry in the RoCE port's GID
//! table, for each kind of GID (`drivers/infiniband/core/roce_gid_mgmt.c`). ADD fails if the table is full. The number
//! of pods depends on the table's length, and not on the addresses that netdevs have at present. Resources with the
//! same device share its table.

use crate::{OfferedDevice, PreviousOffers, Selected};
use daemon_conf::{Allocate, Conf, Ids, ResourceConf};
use rdma_netns::{Hca, LinkType};

/// Number of entries of one address: RoCE v1 and v2. Some drivers (rxe) have only v2.
const KINDS: u32 = 2;

/// Number of the host's GIDs of each kind: the default GID, the GIDs of the link-local, IPv6 and IPv4 addresses of the
/// NIC or bond, and four more of a VLAN.
const OF_HOST: u32 = 8;

/// Returns the number of pods that fit into a table of `length` entries, if each pod has `addresses` addresses in the
/// table. Returns at least 1.
fn fit(length: u32, addresses: u32) -> u32 {
    ((length / KINDS).saturating_sub(OF_HOST) / addresses.max(1)).max(1)
}

/// Returns the length of the shortest of the device's GID tables that contain addresses. Returns `None` if the length
/// is unknown, or if no GID contains an address: with InfiniBand, and with iWARP, whose tables have one entry
/// (`erdma_get_port_immutable()`).
fn length(hca: &Hca) -> Option<u32> {
    let ports = hca.ports.iter();
    let ports = ports.filter(|it| it.link_type == LinkType::Ether);
    ports.map(|it| it.gids).filter(|it| *it > 1).min()
}

/// Returns the number of addresses that a pod's child netdev can have at most. `None`: pods get no child netdevs.
fn addresses(conf: &Conf, resource: &ResourceConf) -> Option<u32> {
    conf.chain.as_ref()?.addresses(resource.name.as_str())
}

/// Returns how many ids at most contain one device, in a resource with `devices` devices. `None`: the resource is
/// exclusive.
pub(super) fn of_device(ids: Ids, devices: usize) -> Option<u32> {
    let devices = devices as u32;
    match ids {
        Ids::Exclusive => None,
        Ids::PerNic {
            count,
            allocate: Allocate::All,
        } => Some(count.saturating_mul(devices)),
        Ids::Shared {
            count,
            allocate: Allocate::Numa,
        } => Some(count.div_ceil(devices.max(1))),
        Ids::Shared { count, .. } | Ids::PerNic { count, .. } => Some(count),
    }
}

/// Returns the number of pods with `addresses` addresses each that fit on every device of `own`. On each device, other
/// resources of `all` take their configured numbers of pods. All resources with the default number share the rest
/// equally. `None`: no device has a table.
fn room(conf: &Conf, addresses: u32, own: &Selected<'_>, all: &[Selected<'_>]) -> Option<u32> {
    let (resource, devices) = own;
    let room = |device: &OfferedDevice| {
        let (mut rest, mut parts) = (fit(length(&device.hca)?, addresses), 1);
        for (other, devices) in all {
            let has_device = devices.iter().any(|it| it.hca.name == device.hca.name);
            let has_children = self::addresses(conf, other).is_some();
            if other.name == resource.name || !has_device || !has_children {
                continue;
            }
            match of_device(other.ids, devices.len()) {
                Some(_) if other.has_default_count => parts += 1,
                taken => rest = rest.saturating_sub(taken.unwrap_or(0)),
            }
        }
        // a configured number is not limited to a part
        let parts = if resource.has_default_count { parts } else { 1 };
        Some((rest / parts).max(1))
    };
    devices.iter().filter_map(room).min()
}

/// Returns the scheme of the resource's ids, and [`Offer::keeps_count`](crate::Offer::keeps_count). Without a
/// configured number there are as many ids as pods fit, up to the default number. For the device plugin, the number
/// does not fall until the node reboots, because pods may have the ids. While no device has a table, as during a
/// driver's reload, the number stays.
pub(super) fn ids(
    conf: &Conf,
    own: &Selected<'_>,
    all: &[Selected<'_>],
    previous: &PreviousOffers,
    remarks: &mut Vec<String>,
) -> (Ids, bool) {
    let (resource, devices) = own;
    let mut ids = resource.ids;
    let Some(addresses) = addresses(conf, resource) else {
        return (ids, false);
    };
    let each = room(conf, addresses, own, all);
    let devices = devices.len() as u32;
    let (count, fits) = match &mut ids {
        Ids::Shared {
            count,
            allocate: Allocate::Numa,
        } => (count, each.map(|it| it.saturating_mul(devices))),
        // each id of each device has all devices
        Ids::PerNic {
            count,
            allocate: Allocate::All,
        } => (count, each.map(|it| (it / devices).max(1))),
        Ids::Shared { count, .. } | Ids::PerNic { count, .. } => (count, each),
        Ids::Exclusive => return (ids, false),
    };
    let before = match conf.by_claims(&resource.name) && fits.is_some() {
        // the number may fall: a smaller capacity ends no claim
        true => 0,
        false => previous.count(resource.name.as_str()),
    };
    let Some(most) = fits.max((before > 0).then_some(before)) else {
        return (ids, false);
    };
    if resource.has_default_count {
        *count = (*count).min(most);
    }
    if let Some(fits) = fits.filter(|it| *count > *it) {
        let cure = match resource.has_default_count {
            true => "the ids stay until the node reboots, because pods may have them".to_owned(),
            false => format!("set the number of ids to {fits}"),
        };
        remarks.push(format!(
            "{}: {} has {count} ids, and {fits} pods fit into the GID tables: ADD of a further pod fails; {cure}",
            resource.place, resource.name
        ));
    }
    (ids, true)
}

#[cfg(test)]
#[path = "sharers_tests.rs"]
mod tests;
