// SPDX-License-Identifier: Apache-2.0
//! DEL: the attachment's addresses are free again.

use super::Node;
use crate::{
    conf,
    error::{Error, list},
    secret,
    store::{Disk, Holding, Locked, Owner},
};
use std::net::IpAddr;

/// Gives back all that the attachment holds; needs neither namespace nor parent, and nothing
/// of the configuration but where the leases are. It is no error if there are none.
pub fn del<D: Disk>(node: &Node<'_, D>) -> Result<(), Error> {
    let owner = node.owner()?;
    secret::forget_draft(node.disk, &node.place.data_dir);
    let conflicts = conf::conflicts(node.raw).unwrap_or_else(|error| {
        log::warn!("{error}; the addresses are given back all the same");
        vec![]
    });
    let Some(locked) = node.store.lock_existing()? else {
        return Ok(());
    };
    avoid(&locked, &owner, &conflicts)?;
    let ips = match locked.holding(&owner)? {
        // All that this plugin gave. host-local may have given it more, if there was no DEL between its ADD and ours,
        // which CNI forbids. To find that, every DEL or every ADD would have to read all leases of the node: they are
        // found by their address alone. The note goes with this DEL, so the next one reads them. GC always does.
        Holding::Complete(ips) => ips,
        // unknown here, or not as this plugin left it: host-local had a part in it
        Holding::Partial | Holding::Nothing => locked.leases_of(&owner)?,
    };
    let released = locked.release(&owner, &ips)?;
    // others need not wait for the disk
    drop(locked);
    node.store.forget_drafts(|it| *it == owner)?;
    // also what a DEL that was killed has taken away
    node.store.sync()?;
    if !released.is_empty() {
        log::info!("{} given back by {owner}", list(&released));
    }
    Ok(())
}

/// Marks those of `conflicts` that `owner` holds as in use by another machine. Some of those that are old go
/// then, as many a runtime never calls GC.
fn avoid<D: Disk>(
    locked: &Locked<'_, D>,
    owner: &Owner,
    conflicts: &[IpAddr],
) -> Result<(), Error> {
    if let Some(first) = conflicts.first()
        && let Err(error) = locked.forget_old_conflicts(Some(first))
    {
        log::warn!("{error}; DEL goes on");
    }
    for ip in conflicts {
        if locked.lease(*ip)?.is_some_and(|lease| lease.is_of(owner)) {
            log::warn!("another machine uses {ip}; it is avoided for an hour");
            locked.avoid(*ip)?;
        }
    }
    Ok(())
}
