// SPDX-License-Identifier: Apache-2.0
//! A look at all records before an ADD: who holds what, and what is stale and recovered.

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

/// Time until others try again to release the addresses of a record whose IPAM plugin refused.
const BACK_OFF: Duration = Duration::from_secs(300);

/// Result of reading all records.
#[derive(Debug, Default)]
pub struct Recovery {
    /// Attachments whose devices are not to be had.
    pub holders: Vec<Attachment>,
    /// Attachments whose devices were restored to the host: their addresses are still to be given
    /// back, by [`Recovery::release`].
    recovered: Vec<(Attachment, Lock)>,
}

/// Restores what a pod that is gone, or an ADD that was killed, has left: containerd does
/// not call GC, so that ADD is where a crash is recovered. What cannot be restored has a
/// holder.
///
/// The node's lock and that of `own` are held by the caller.
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

/// The records of these attachments; of one that cannot be read it is told why.
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
                    "{key}: its record has format {format}, of a newer rdma-cni: left alone"
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

/// The lock of `key` for an ADD, when nothing is recorded of it any more. After an error its file is gone, unless a
/// record needs it.
pub fn lock_own<K: Kernel>(node: &Node<'_, K>, key: &Key) -> Result<Lock, Error> {
    let lock = node.store.lock(key).map_err(Error::from);
    let own = lock.and_then(|lock| recover_own(node, key).map(|()| lock));
    own.inspect_err(|_| {
        node.store.tidy(key);
    })
}

/// Clears the way for an ADD: a record of the same attachment is that of an ADD that was
/// killed, or of a pod that is gone. The lock of `key` is held by the caller, and that of the
/// node is not.
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
    /// Gives the addresses of what was recovered back. An IPAM plugin may take its time, and
    /// fail: the record then stays for another try, and holds no device. The pod that waits for
    /// it is another one: it waits for `BUDGET` in all.
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
                    // from now on it is left alone for a while; its own DEL waits for the lock until that is written
                    teardown::mark(node, &attachment, Phase::Restored);
                    drop(lock);
                }
            }
        }
    }
}

/// Recovers what was not settled as it was `seen`.
fn recover_other<K: Kernel>(
    node: &Node<'_, K>,
    seen: Attachment,
    boot_id: &str,
    recovery: &mut Recovery,
) {
    let key = &seen.key;
    // IPAM has refused it a little while ago
    let is_young = || node.store.age(key).is_some_and(|age| age < BACK_OFF);
    if seen.phase == Phase::Restored && seen.ipam.is_some() && is_young() {
        return;
    }
    // an ADD or DEL that is under way holds the lock; a killed one does not
    let lock = node.store.try_lock(key).unwrap_or_else(|error| {
        log::warn!("{key}: {error}");
        None
    });
    // an ADD that is under way changes nothing of its devices as long as the node's lock is held
    if lock.is_none() && seen.phase == Phase::Attaching {
        recovery.holders.push(seen);
        return;
    }
    // another one may have come to its end between the look and the lock
    let Record::Good(attachment) = node.store.record(key) else {
        if let Some(lock) = lock {
            lock.discard();
        }
        return;
    };
    let Some(lock) = lock.filter(|_| !attachment.is_settled(node.kernel, boot_id)) else {
        // somebody else is giving its addresses back: its devices are free
        if attachment.phase != Phase::Restored {
            recovery.holders.push(*attachment);
        }
        return;
    };
    log::info!("{key}: a verb was killed, or the pod is gone: recovering");
    let mut attachment = *attachment;
    let restored = restore_devices(node, &mut attachment, boot_id).and_then(|()| {
        // from here on its devices can be another pod's
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

/// Restores the devices; addresses follow when the node's lock is free. ADD does not wait here. It leaves rails that are home
/// to other owners in the first try if it awaits neither a namespace's end nor a network manager, and otherwise in a try at
/// least [`PATIENCE`] after an earlier one.
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
