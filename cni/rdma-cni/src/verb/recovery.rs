// SPDX-License-Identifier: Apache-2.0
//! Reads all records before an ADD. Determines which attachments hold devices, and recovers attachments whose pod is
//! gone.

use super::{
    Node, outlast,
    teardown::{self, Elsewhere, PATIENCE},
};
use crate::{error::Error, ipam};
use attachments::{
    Attachment, Key, Phase,
    store::{Lock, Record},
};
use rdma_netns::Kernel;
use std::time::Duration;

/// Time that the addresses of other pods may delay an ADD.
const BUDGET: Duration = Duration::from_secs(5);

/// Time for which other ADDs do not retry an IPAM plugin that refused to release a record's addresses.
const BACK_OFF: Duration = Duration::from_secs(300);

/// Result of reading all records.
#[derive(Debug, Default)]
pub struct Recovery {
    /// Attachments whose devices are not available.
    pub holders: Vec<Attachment>,
    /// Attachments whose devices are restored to the host, and whose addresses [`Recovery::release`] still must
    /// release.
    recovered: Vec<(Attachment, Lock)>,
}

/// Restores the devices of pods that are gone, and of killed ADDs. Recovery runs in ADD because containerd does not
/// call GC. Devices that cannot be restored count as held.
///
/// The caller holds the node's lock and the lock of `own`.
pub fn recover<K: Kernel>(node: &Node<'_, K>, own: &Key, boot_id: &str) -> Result<Recovery, Error> {
    let mut recovery = Recovery::default();
    let records = node.store.sweep(None, Some(own))?;
    let others = others(node, records.iter().filter(|key| *key != own));
    let settled = attachments::settled(node.kernel, boot_id, &others);
    for (attachment, is_settled) in others.into_iter().zip(settled) {
        match is_settled {
            true => recovery.holders.push(attachment),
            false => recover_other(node, attachment, boot_id, &mut recovery),
        }
    }
    let holders = recovery.holders.into_iter();
    recovery.holders = holders.map(Attachment::without_returned).collect();
    Ok(recovery)
}

/// Returns the records of these attachments. Logs why a record cannot be read.
fn others<'a, K: Kernel>(
    node: &Node<'_, K>,
    keys: impl Iterator<Item = &'a Key>,
) -> Vec<Attachment> {
    let mut others = vec![];
    for key in keys {
        match node.store.record(key) {
            Record::Good(attachment) => others.push(*attachment),
            Record::None => {}
            Record::Newer(format) => {
                log::warn!("{key}: its record has format {format}, of a newer rdma-cni: ignored");
            }
            Record::Corrupt(reason) => {
                log::warn!(
                    "{key}: its record cannot be read ({reason}): its DEL restores the devices"
                );
            }
        }
    }
    others
}

/// Recovers an earlier attachment with this `key`, and takes its lock for an ADD. After an error the lock's file is
/// removed, unless a record needs it.
pub fn lock_own<K: Kernel>(node: &Node<'_, K>, key: &Key) -> Result<Lock, Error> {
    let lock = node.store.lock(key).map_err(Error::from);
    let own = lock.and_then(|lock| recover_own(node, key).map(|()| lock));
    own.inspect_err(|_| {
        node.store.tidy(key);
    })
}

/// Recovers an earlier attachment with the same `key`. Its record is from a killed ADD, or from a pod that is gone. The
/// caller holds the lock of `key`, but not the node's lock.
fn recover_own<K: Kernel>(node: &Node<'_, K>, key: &Key) -> Result<(), Error> {
    let mut attachment = match node.store.load(key)? {
        Record::Good(attachment) => *attachment,
        Record::None => return Ok(()),
        Record::Newer(format) => {
            return Err(Error::Newer {
                key: key.clone(),
                format,
            });
        }
        Record::Corrupt(reason) => {
            let aside = node.store.set_aside(key)?;
            log::warn!("{key}: its record cannot be read ({reason}); kept as {aside:?}");
            return Ok(());
        }
    };
    if attachment.is_settled(node.kernel, &node.kernel.boot_id()?) {
        return Err(Error::Exists(key.to_string()));
    }
    log::info!("{key}: an earlier ADD was killed, or its pod is gone: recovering");
    let pod = teardown::pod_of(node, &attachment)?;
    teardown::devices(node, &mut attachment, pod.as_ref())?;
    teardown::addresses(node, &attachment, None, &[]).map_err(Error::Release)?;
    teardown::forget_rails(node, &attachment);
    node.store.forget(key).map_err(Error::Forget)
}

impl Recovery {
    /// Releases the addresses of the recovered attachments. If an IPAM plugin fails, the record stays for a later try,
    /// but holds no device. The ADD of an unrelated pod waits for these releases, so all of them take at most `BUDGET`.
    pub fn release<K: Kernel>(self, node: &Node<'_, K>) {
        let deadline = ipam::now() + BUDGET;
        for (attachment, lock) in self.recovered {
            teardown::forget_rails(node, &attachment);
            let released = teardown::addresses_until(node, &attachment, None, &[], deadline);
            let forgotten = released
                .map_err(Error::Release)
                .and_then(|()| node.store.forget(&attachment.key).map_err(Error::Forget));
            match forgotten {
                Ok(()) => lock.discard(),
                Err(error) => {
                    log::warn!("{}: {error}", attachment.key);
                    // from here on other ADDs ignore the record for a while; the attachment's own DEL waits for the
                    // lock until this write is done
                    teardown::mark(node, &attachment, Phase::Restored);
                    drop(lock);
                }
            }
        }
    }
}

/// Recovers an attachment that was not settled when it was `seen`.
fn recover_other<K: Kernel>(
    node: &Node<'_, K>,
    seen: Attachment,
    boot_id: &str,
    recovery: &mut Recovery,
) {
    let key = &seen.key;
    // its IPAM plugin refused a short time ago
    let is_young = || node.store.age(key).is_some_and(|age| age < BACK_OFF);
    if seen.phase == Phase::Restored && seen.ipam.is_some() && is_young() {
        return;
    }
    // a running ADD or DEL holds the lock; a killed one does not
    let lock = node.store.try_lock(key).unwrap_or_else(|error| {
        log::warn!("{key}: {error}");
        None
    });
    // the caller holds the node's lock, so a running ADD does not change its devices now
    if lock.is_none() && seen.phase == Phase::Attaching {
        recovery.holders.push(seen);
        return;
    }
    // another verb may have finished between the read and the lock
    let Record::Good(attachment) = node.store.record(key) else {
        if let Some(lock) = lock {
            lock.discard();
        }
        return;
    };
    let Some(lock) = lock.filter(|_| !attachment.is_settled(node.kernel, boot_id)) else {
        // another process releases the addresses: the devices are free
        if attachment.phase != Phase::Restored {
            recovery.holders.push(*attachment);
        }
        return;
    };
    log::info!("{key}: a verb was killed, or the pod is gone: recovering");
    let mut attachment = *attachment;
    let restored = restore_devices(node, &mut attachment, boot_id).and_then(|()| {
        // from here on another pod can get its devices
        attachment.phase = Phase::Restored;
        node.store.update(&attachment).map_err(Error::Forget)
    });
    match restored {
        Ok(()) => recovery.recovered.push((attachment, lock)),
        Err(error) => {
            match &error {
                Error::Incomplete(it) if it.only_continues() => log::info!("{key}: {it}"),
                _ => log::warn!("{key}: cannot be recovered: {error}"),
            }
            recovery.holders.push(attachment);
        }
    }
}

/// Restores the devices; the caller releases the addresses after the node's lock. ADD does not wait for the end of a
/// namespace, or for a network manager. If there is nothing to wait for, rails that the first try brings to the host
/// become free for other owners. Otherwise they become free by a try at least [`PATIENCE`] after an earlier one.
fn restore_devices<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
    boot_id: &str,
) -> Result<(), Error> {
    if !attachment.is_away(boot_id) {
        return Ok(());
    }
    let pod = teardown::pod_of(node, attachment)?;
    let tried_before = attachment.tried;
    let age = node.store.age(&attachment.key);
    let has_waited = tried_before && age.is_none_or(|it| it >= PATIENCE);
    let elsewhere = match has_waited {
        true => Elsewhere::Left,
        false => Elsewhere::Awaited,
    };
    let restored =
        teardown::restore_devices(node, attachment, pod.as_ref(), tried_before, elsewhere);
    if let Err(incomplete) = &restored {
        if has_waited || !incomplete.awaited && outlast::watched(&restored).is_none() {
            outlast::leave(node, attachment, incomplete);
        } else if !tried_before {
            attachment.tried = true;
            if attachment.phase == Phase::Attached {
                attachment.phase = Phase::Detaching;
            }
            teardown::mark(node, attachment, attachment.phase);
        }
    }
    restored?;
    Ok(())
}
