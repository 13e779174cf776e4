// SPDX-License-Identifier: Apache-2.0
//! Number of pods that can share a resource's devices. Each address of a pod's child netdev takes an entry of the RDMA
//! port's GID table, or one for RoCE v1 and one for v2 (`drivers/infiniband/core/roce_gid_mgmt.c`). ADD fails without
//! the entry.

use super::{OfferedDevice, PreviousOffers};
use crate::conf::{Allocate, Ids, ResourceConf};
use rdma_netns::{GidKind, GidTable, Inventory, LinkType, Netdev};

/// Returns the number of pods that fit into the table of the device's port. A pod takes as many entries as the netdev
/// that its child is on: the child, too, has a link-local address, and one of each prefix. `None`: the table is
/// unknown, or has no entries of addresses, as with InfiniBand and iWARP.
pub(super) fn fitting(
    device: &OfferedDevice,
    inventory: &Inventory,
    table: impl FnOnce(&str, u32) -> Option<GidTable>,
) -> Option<u32> {
    let mut ports = device.hca.ports.iter();
    let port = ports.find(|it| it.link_type == LinkType::Ether)?;
    let base = inventory.function(&device.address)?.netdevs.first();
    let base = base.map(Netdev::base)?;
    let parent = device.parent.as_deref().unwrap_or(base);
    let table = table(&device.hca.name, port.number)?;
    let of = |netdev: &str, kind: Option<GidKind>| {
        let gids = table.gids.iter();
        let own = gids.filter(|it| it.netdev.as_deref() == Some(netdev));
        own.filter(|it| kind.is_none_or(|kind| it.kind == kind))
            .count() as u32
    };
    if of(base, Some(GidKind::RoceV2)) == 0 {
        return None;
    }
    let kinds = 1 + u32::from(of(base, Some(GidKind::InfinibandOrRoceV1)) > 0);
    let of_parent = of(parent, None);
    let of_node = of(base, None) + if parent == base { 0 } else { of_parent };
    // a link-local address and another one
    let each = of_parent.max(2 * kinds);
    Some((table.size.saturating_sub(of_node) / each).max(1))
}

/// Returns the scheme of a shared resource's ids. Without a configured number there are as many as pods fit, and never
/// fewer than before, because pods may have any of them.
pub(super) fn shared(
    resource: &ResourceConf,
    (count, allocate): (u32, Allocate),
    devices: &[OfferedDevice],
    previous: &PreviousOffers,
    remarks: &mut Vec<String>,
) -> Ids {
    let fits = devices.iter().map(|it| previous.fitting(it));
    let fits = match allocate {
        Allocate::All => fits.flatten().min(),
        Allocate::Numa => fits.sum(),
    };
    let Some(fits) = fits else {
        return Ids::Shared { count, allocate };
    };
    let (count, why) = match resource.has_default_count {
        true => {
            let before = previous.count(&resource.name);
            (
                before.unwrap_or(0).max(fits.min(count)),
                " as before, which pods may have",
            )
        }
        false => (count, ""),
    };
    if count > fits {
        remarks.push(format!(
            "{}: {} has {count} ids{why}, and {fits} pods fit into the GID tables of its devices: ADD of a further pod \
             fails; set the number of ids to {fits}",
            resource.place, resource.name
        ));
    }
    Ids::Shared { count, allocate }
}

#[cfg(test)]
#[path = "sharers_tests.rs"]
mod tests;
