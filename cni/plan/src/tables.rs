// SPDX-License-Identifier: Apache-2.0
//! Chooses the routing tables of a new attachment.

use super::{Obstacle, other_interfaces};
use attachments::Attachment;
use rdma_netns::Observed;
use std::collections::BTreeSet;

/// Chooses the tables of a new attachment: one for each rail, then one for each other interface of the pod. Chooses
/// none if `routing.tableBase` is 0. Otherwise chooses the lowest consecutive tables from `routing.tableBase` on that
/// are all free. A table is taken if the pod uses it, or if it is in a record of `others` that belongs to the same pod.
///
/// # Errors
/// No consecutive tables are free.
pub fn choose_tables(
    attachment: &mut Attachment,
    observed: &Observed,
    others: &[Attachment],
) -> Result<(), Obstacle> {
    let base = attachment.routing.table_base;
    let Some(last) = tables(attachment).max() else {
        return Ok(());
    };
    let mut interfaces = other_interfaces::of_pod(attachment, observed);
    let rails = last - base + 1;
    let count = rails.saturating_add(u32::try_from(interfaces.len()).unwrap_or(u32::MAX));
    let same_pod = others
        .iter()
        .filter(|it| attachment.netns_id == it.netns_id);
    let used = observed.pod.iter().flat_map(|pod| &pod.tables).copied();
    let taken: BTreeSet<u32> = same_pod.flat_map(tables).chain(used).collect();
    let mut free = base;
    for table in taken {
        if (free..free.saturating_add(count)).contains(&table) {
            free = table.saturating_add(1);
        }
    }
    if free.checked_add(count).is_none() {
        return Err(Obstacle::NoTables { base });
    }
    for (interface, table) in interfaces.iter_mut().zip(free + rails..) {
        interface.table = table;
    }
    attachment.other_interfaces = interfaces;
    attachment.routing.table_base = free;
    Ok(())
}

/// Returns the tables of an attachment: the tables of its rails, and of the pod's other interfaces.
fn tables(attachment: &Attachment) -> impl Iterator<Item = u32> {
    let rails = (0..attachment.rails.len()).filter_map(|index| attachment.table(index));
    let others = attachment.other_interfaces.iter().map(|it| it.table);
    rails.chain(others)
}
