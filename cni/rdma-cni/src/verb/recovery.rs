// SPDX-License-Identifier: Apache-2.0
//! Reads all records before an ADD. Determines which attachments have devices, and recovers attachments whose pods have
//! ended.

use super::{
    outlast,
    restoring::{self, Elsewhere},
    teardown::{self, NETNS_EXIT_TIMEOUT},
};
use crate::{apply::Tries, error::Error, ipam, node::Node};
use attachments::{
    Attachment, Key, Phase,
    store::{AttachmentLock, NodeLock, Record},
};
use rdma_netns::Kernel;
use std::time::Duration;

/// Maximum delay of an ADD by the release of other pods' addresses.
const BUDGET: Duration = Duration::from_secs(5);

/// Pause after an IPAM plugin refused to release a record's addresses. During the pause other ADDs do not call the
/// plugin for this record.
const BACK_OFF: Duration = Duration::from_secs(300);

/// Result of reading all records.
#[derive(Debug, Default)]
pub struct Recovery {
    /// Attachments whose devices this ADD cannot get.
    pub holders: Vec<Attachment>,
    /// Attachments whose devices are restored to the host, but whose addresses [`Recovery::release`] must still
    /// release.
    recovered: Vec<(Attachment, AttachmentLock)>,
}

/// Restores the devices of pods that have ended, and of killed ADDs. ADD runs this recovery because containerd does not
/// call GC. If a device cannot be restored, the ADD cannot get it.
///
/// The caller holds the node's lock and the lock of `own`.
pub fn recover<K: Kernel>(
    node: &Node<'_, K>,
    _moves: &NodeLock,
    own: &Key,
    boot_id: &str,
) -> Result<Recovery, Error> {
    let mut recovery = Recovery::default();
    let records = node.store.sweep(None, Some(own)).map_err(Error::State)?;
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

/// Returns the records of these attachments. Logs the reason if a record cannot be read.
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
                log::warn!(
                    "{key}: ignoring its record, which a newer rdma-cni wrote (format {format})"
                );
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

/// Recovers an earlier attachment with this `key`, and takes its lock for an ADD. After an error, removes the lock file
/// if no record needs it.
pub fn lock_own<K: Kernel>(node: &Node<'_, K>, key: &Key) -> Result<AttachmentLock, Error> {
    let lock = node.store.lock(key).map_err(Error::State);
    let own = lock.and_then(|lock| recover_own(node, key, &lock).map(|()| lock));
    own.inspect_err(|_| {
        node.store.tidy(key);
    })
}

/// Recovers an earlier attachment with the same `key`. Its record is from a killed ADD, or from a pod that has ended.
/// Returns an error if the attachment still exists, or if a newer version wrote the record. Sets an unreadable record
/// aside. The caller holds `lock`, the lock of `key`, but not the node's lock.
fn recover_own<K: Kernel>(
    node: &Node<'_, K>,
    key: &Key,
    lock: &AttachmentLock,
) -> Result<(), Error> {
    let mut attachment = match node.store.load(key).map_err(Error::State)? {
        Record::Good(attachment) => *attachment,
        Record::None => return Ok(()),
        Record::Newer(format) => {
            return Err(Error::Newer {
                key: key.clone(),
                format,
            });
        }
        Record::Corrupt(reason) => {
            let aside = node.store.set_aside(key).map_err(Error::State)?;
            log::warn!("{key}: its record cannot be read ({reason}); kept as {aside:?}");
            return Ok(());
        }
    };
    if attachment.is_settled(node.kernel, &node.kernel.boot_id()?) {
        return Err(Error::Exists(key.to_string()));
    }
    log::info!("{key}: an earlier verb failed or was killed, or the pod is gone: recovering");
    let pod = teardown::pod_of(node, &attachment)?;
    teardown::devices(node, &mut attachment, pod.as_ref(), lock)?;
    teardown::addresses(node, &attachment, None, &[]).map_err(Error::Release)?;
    teardown::forget_rails(node, &attachment);
    node.store.forget(key).map_err(Error::Forget)
}

impl Recovery {
    /// Releases the addresses of the recovered attachments. If an IPAM plugin fails, the record remains, without
    /// devices, for a later try. All releases together take at most `BUDGET`, because the ADD of an unrelated pod waits
    /// for them.
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
                    // after this write, other ADDs ignore the record for `BACK_OFF`. The attachment's DEL waits for the
                    // lock until the write is done
                    restoring::mark(node, &attachment, Phase::Restored);
                    drop(lock);
                }
            }
        }
    }
}

/// Recovers an attachment that was not settled when the caller read its record as `seen`.
fn recover_other<K: Kernel>(
    node: &Node<'_, K>,
    seen: Attachment,
    boot_id: &str,
    recovery: &mut Recovery,
) {
    let key = &seen.key;
    // the record is new: IPAM refused to release the addresses a short time ago, or a verb is releasing them
    let is_young = || node.store.age(key).is_some_and(|age| age < BACK_OFF);
    if seen.phase == Phase::Restored && seen.ipam.is_some() && is_young() {
        return;
    }
    // a running ADD or DEL has the lock, a killed one does not
    let lock = node.store.try_lock(key).unwrap_or_else(|error| {
        log::warn!("{key}: {error}");
        None
    });
    // the other attachment's ADD is running, and moves no device now, because this verb holds the node's lock
    if lock.is_none() && seen.phase == Phase::Attaching {
        recovery.holders.push(seen);
        return;
    }
    // another verb may have finished between the read and the lock
    let Record::Good(attachment) = node.store.record(key) else {
        drop(lock);
        node.store.tidy(key);
        return;
    };
    let Some(lock) = lock.filter(|_| !attachment.is_settled(node.kernel, boot_id)) else {
        // in the phase `Restored` the devices are free: another process is releasing the addresses
        if attachment.phase != Phase::Restored {
            recovery.holders.push(*attachment);
        }
        return;
    };
    log::info!("{key}: a verb was killed, or the pod is gone: recovering");
    let mut attachment = *attachment;
    let restored = restore_devices(node, &mut attachment, boot_id).and_then(|()| {
        // after this write, another pod can get the devices
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

/// Restores the devices. The caller releases the addresses after it has released the node's lock. Does not wait for the
/// end of a namespace, or for a network manager. If no such wait is necessary, rails on the host become free for other
/// pods after the first try. Otherwise they become free after a later try, at least [`NETNS_EXIT_TIMEOUT`] after the
/// first.
fn restore_devices<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &mut Attachment,
    boot_id: &str,
) -> Result<(), Error> {
    if !attachment.is_away(boot_id) {
        return Ok(());
    }
    let pod = teardown::pod_of(node, attachment)?;
    let since_failure = attachment.since_failure(node.kernel.uptime());
    let has_waited = since_failure.is_some_and(|it| it >= NETNS_EXIT_TIMEOUT);
    let elsewhere = match has_waited {
        true => Elsewhere::Left,
        false => Elsewhere::Awaited,
    };
    let tries = Tries::new(since_failure);
    let restored = restoring::restore_devices(node, attachment, pod.as_ref(), tries, elsewhere);
    if let Err(incomplete) = &restored {
        if has_waited || !incomplete.awaited && outlast::watched(&restored).is_none() {
            outlast::leave(node, attachment, incomplete);
        } else if attachment.failed_at.is_none() {
            restoring::set_failed(node.kernel, attachment);
            restoring::mark(node, attachment, attachment.phase);
        }
    }
    restored?;
    Ok(())
}
