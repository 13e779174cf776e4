// SPDX-License-Identifier: Apache-2.0
//! DEL: releases the attachment's addresses.

use super::Node;
use crate::{
    conf,
    error::{Error, list},
    secret,
    store::{Holding, Locked, Owner},
};
use std::net::IpAddr;

/// Removes all leases of the attachment. DEL needs neither the namespace nor the parent, and from the configuration
/// only the network's name and the leases' directory. An attachment without leases is no error.
pub fn del(node: &Node<'_>) -> Result<(), Error> {
    let owner = node.owner()?;
    secret::forget_draft(node.disk, &node.place.data_dir);
    let conflicts = conf::conflicts(node.raw).unwrap_or_else(|error| {
        log::warn!("{error}; DEL ignores conflicts, and releases the attachment's addresses");
        vec![]
    });
    let Some(locked) = node.store.lock_existing()? else {
        return Ok(());
    };
    avoid(&locked, &owner, &conflicts)?;
    let ips = match locked.holding(&owner)? {
        // The note has all addresses that this plugin assigned. host-local may have assigned more, if there was no DEL
        // between its ADD and this plugin's, which CNI forbids. The name of a lease file is only an address, so finding
        // such leases requires reading all leases of the node. Only GC and the next DEL read them: this DEL removes the
        // note, so the next DEL finds none.
        Holding::Complete(ips) => ips,
        // host-local ran ADD or DEL of this attachment, or a verb was killed
        Holding::Partial | Holding::Nothing => locked.leases_of(&owner)?,
    };
    let released = locked.release(&owner, &ips)?;
    // releases the lock first: other processes need not wait for the disk
    drop(locked);
    node.store.forget_drafts(|it| *it == owner)?;
    // also syncs the removals of a killed DEL
    node.store.sync()?;
    if !released.is_empty() {
        log::info!("{owner} released {}", list(&released));
    }
    Ok(())
}

/// Records that another machine uses the addresses in `conflicts` that `owner` has. Only logs a failed write, because
/// DEL must release the addresses also on a full disk. Also removes some expired notes about conflicts, because many
/// runtimes never call GC.
fn avoid(locked: &Locked<'_>, owner: &Owner, conflicts: &[IpAddr]) -> Result<(), Error> {
    if let Some(first) = conflicts.first()
        && let Err(error) = locked.forget_old_conflicts(Some(first))
    {
        log::warn!("{error}; DEL goes on");
    }
    for ip in conflicts {
        if locked.lease(*ip)?.is_some_and(|lease| lease.is_of(owner)) {
            match locked.avoid(*ip) {
                Ok(()) => {
                    log::warn!("another machine uses {ip}: for an hour ADD avoids this address");
                }
                Err(error) => log::warn!(
                    "another machine uses {ip}: {error}; ADD may assign a pod this address again"
                ),
            }
        }
    }
    Ok(())
}
