// SPDX-License-Identifier: Apache-2.0
//! GC: releases the addresses of attachments that the runtime no longer has.

use super::Node;
use crate::{
    error::{Error, list},
    secret,
    store::{Lease, Owner},
};
use cni_protocol::SpecVersion;
use std::collections::BTreeSet;

/// Removes every lease of this network whose attachment is not in `cni.dev/valid-attachments`, and every empty lease.
/// Keeps a lease that names only a container if the container has a valid attachment. Keeps other files. Without the
/// list, GC removes nothing.
pub fn gc(node: &Node<'_>) -> Result<(), Error> {
    node.place.network.since("GC", SpecVersion::V1_1_0)?;
    let Some(valid) = &node.place.network.valid_attachments else {
        log::info!("the configuration has no cni.dev/valid-attachments: GC releases nothing");
        return Ok(());
    };
    secret::forget_draft(node.disk, &node.place.data_dir);
    let Some(locked) = node.store.lock_existing()? else {
        return Ok(());
    };
    let (mut containers, mut owners): (BTreeSet<&str>, BTreeSet<Owner>) = Default::default();
    containers.extend(valid.iter().map(|it| &*it.container));
    owners.extend(
        valid
            .iter()
            .map(|it| Owner::new(&it.container, &it.interface)),
    );
    let contents = locked.read()?;
    for warning in contents.warnings() {
        log::warn!("{warning}");
    }
    let (swept, mut errors) = locked.sweep(&contents, |lease| match lease {
        Lease::Of(owner) => !owners.contains(owner),
        Lease::OfContainer(container) => !containers.contains(&**container),
        Lease::Empty => true,
        Lease::Foreign => false,
    });
    // releases the lock first: other processes need not wait for the disk
    drop(locked);
    errors.extend(node.store.sync_swept());
    if !swept.is_empty() {
        log::info!(
            "released {}: the runtime has none of their attachments",
            list(&swept)
        );
    }
    match errors.is_empty() {
        true => Ok(()),
        false => Err(Error::Sweep(errors)),
    }
}
