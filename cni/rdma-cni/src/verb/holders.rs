// SPDX-License-Identifier: Apache-2.0
//! Who has what, by the records: for an ADD that looks beside others, and recovers nothing.

use super::Node;
use crate::error::Error;
use attachments::{Attachment, Key, Phase, store::Record, versions::Versions};
use rdma_netns::Kernel;
use std::time::Duration;

/// How long a record whose addresses IPAM did not take back is left alone by others.
const BACK_OFF: Duration = Duration::from_secs(300);

/// The attachments whose devices are not to be had, and the records that say so.
#[derive(Debug, Default)]
pub struct Holders {
    versions: Versions,
    all: Vec<Attachment>,
}

/// What another look at the records found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// No record was written since the last one.
    Same,
    /// Others have what they had not before.
    Changed,
    /// A verb was killed, or a pod is gone: its devices are to be restored first, which is done alone on the node.
    Stale,
}

impl Holders {
    /// By a look at all records but `own`. None: one of them is stale.
    ///
    /// # Errors
    /// The records cannot be listed.
    pub fn look<K: Kernel>(
        node: &Node<'_, K>,
        own: &Key,
        boot_id: &str,
    ) -> Result<Option<Self>, Error> {
        node.store.sweep(None);
        let mut holders = Self::default();
        let sight = holders.look_again(node, own, boot_id)?;
        Ok((sight != Sight::Stale).then_some(holders))
    }

    /// By a look at those that were written since. Who has gone meanwhile stays: nobody is refused for long by that.
    ///
    /// # Errors
    /// The records cannot be listed.
    pub fn look_again<K: Kernel>(
        &mut self,
        node: &Node<'_, K>,
        own: &Key,
        boot_id: &str,
    ) -> Result<Sight, Error> {
        // before they are read: one that is written meanwhile is read once more
        let versions = node.store.versions()?;
        let mut sight = Sight::Same;
        for key in versions.since(&self.versions).filter(|key| *key != own) {
            sight = Sight::Changed;
            self.all.retain(|it| it.key != *key);
            match holder(node, key, boot_id) {
                Holder::Is(attachment) => self.all.push(*attachment),
                Holder::None => {}
                Holder::Unsettled(attachment) if node.store.is_at_work(key) => {
                    // somebody is giving its addresses back: its devices are free
                    let has_devices = attachment.phase != Phase::Restored;
                    self.all.extend(Some(*attachment).filter(|_| has_devices));
                }
                // it may have come to its end between the look and the lock
                Holder::Unsettled(_) => match holder(node, key, boot_id) {
                    Holder::Is(attachment) => self.all.push(*attachment),
                    Holder::None => {}
                    Holder::Unsettled(_) => return Ok(Sight::Stale),
                },
            }
        }
        self.versions = versions;
        Ok(sight)
    }

    /// All of them.
    pub fn all(&self) -> &[Attachment] {
        &self.all
    }

    /// All of them.
    pub fn into_all(self) -> Vec<Attachment> {
        self.all
    }
}

/// What a record alone says of who has devices.
pub(super) enum Holder {
    /// Its pod lives, and has them.
    Is(Box<Attachment>),
    /// Nobody, by this record, or nobody can tell.
    None,
    /// A verb is at work on it, or was killed, or its pod is gone.
    Unsettled(Box<Attachment>),
}

/// What the record of `key` says of that.
pub(super) fn holder<K: Kernel>(node: &Node<'_, K>, key: &Key, boot_id: &str) -> Holder {
    match node.store.record(key) {
        Record::Good(attachment) if attachment.is_settled(node.kernel, boot_id) => {
            Holder::Is(attachment)
        }
        // IPAM has refused it a little while ago
        Record::Good(attachment)
            if attachment.phase == Phase::Restored && node.store.age(key) < BACK_OFF =>
        {
            Holder::None
        }
        Record::Good(attachment) => Holder::Unsettled(attachment),
        Record::None => Holder::None,
        Record::Newer(format) => {
            log::warn!("{key}: its record has format {format}, of a newer rdma-cni: left alone");
            Holder::None
        }
        Record::Corrupt(reason) => {
            log::warn!("{key}: its record cannot be read ({reason}): its DEL puts it right");
            Holder::None
        }
    }
}
