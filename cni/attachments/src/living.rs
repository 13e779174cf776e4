// SPDX-License-Identifier: Apache-2.0
//! The attachments of the node: their records, and whether their pods live.

use crate::{
    record::{Attachment, Key, Phase, Rail},
    store::{Record, Store, StoreError},
};
use rdma_netns::{Kernel, OpenPodError};
use std::{net::IpAddr, path::Path};

impl Store {
    /// The attachments whose pods live, or that a verb is at work on; nothing is changed.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn living<K: Kernel>(
        &self,
        kernel: &K,
        boot_id: &str,
    ) -> Result<Vec<Attachment>, StoreError> {
        let mut living = vec![];
        for key in self.keys(None)? {
            if let Record::Good(attachment) = self.record(&key)
                && (attachment.is_settled(kernel, boot_id) || self.is_busy(&attachment, boot_id))
            {
                living.push(*attachment);
            }
        }
        Ok(living)
    }

    /// The records of the boot `boot_id` whose devices are not restored yet, whether their pods live or not.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn of_boot(&self, boot_id: &str) -> Result<Vec<Attachment>, StoreError> {
        let keys = self.keys(None)?;
        let good = keys.iter().filter_map(|key| match self.record(key) {
            Record::Good(attachment) => Some(*attachment),
            _ => None,
        });
        let counts = |it: &Attachment| it.boot_id == boot_id && it.phase != Phase::Restored;
        Ok(good.filter(counts).collect())
    }

    /// The others of those of `attachment`'s boot: what they have of the node's settings is taken away with the last of
    /// them.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn on_this_boot(&self, attachment: &Attachment) -> Result<Vec<Attachment>, StoreError> {
        let mut others = self.of_boot(&attachment.boot_id)?;
        others.retain(|other| other.key != attachment.key);
        Ok(others)
    }

    /// The records that cannot be read: nobody knows whose they are, and what of the node's settings they have.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn unreadable(&self) -> Result<Vec<Key>, StoreError> {
        let mut keys = self.keys(None)?;
        keys.retain(|key| matches!(self.record(key), Record::Corrupt(_) | Record::Newer(_)));
        Ok(keys)
    }

    /// Whether `ip` is an address of another attachment whose pod lives.
    pub fn is_given_to_another<K: Kernel>(
        &self,
        kernel: &K,
        attachment: &Attachment,
        ip: IpAddr,
    ) -> bool {
        let has = |rail: &Rail| rail.given.addresses.iter().any(|address| address.ip == ip);
        let keys = self.keys(None).unwrap_or_default();
        let others = keys.iter().filter(|key| **key != attachment.key);
        let mut others = others.filter_map(|key| match self.record(key) {
            Record::Good(other) if other.is_settled(kernel, &attachment.boot_id) => Some(other),
            _ => None,
        });
        others.any(|other| other.rails.iter().any(has))
    }

    /// The record of `key`; one that cannot be read counts as unreadable for its own verbs only,
    /// and stops no other pod.
    pub fn record(&self, key: &Key) -> Record {
        let record = self.load(key);
        record.unwrap_or_else(|error| Record::Corrupt(error.to_string()))
    }

    /// Whether an ADD or DEL of it is under way, and has not restored its devices.
    fn is_busy(&self, attachment: &Attachment, boot_id: &str) -> bool {
        let is_away = attachment.boot_id == boot_id && attachment.phase != Phase::Restored;
        is_away && self.is_at_work(&attachment.key)
    }
}

impl Attachment {
    /// Whether its ADD has answered, and its pod lives.
    pub fn is_settled<K: Kernel>(&self, kernel: &K, boot_id: &str) -> bool {
        self.phase == Phase::Attached && self.lives(kernel, &self.netns, boot_id)
    }

    /// Whether its pod, whose namespace is to be at `netns`, lives. A namespace that cannot be looked
    /// at for another reason than that it is gone counts as living: nothing is taken from it.
    pub fn lives<K: Kernel>(&self, kernel: &K, netns: &Path, boot_id: &str) -> bool {
        if self.boot_id != boot_id {
            return false;
        }
        match kernel.netns_id(netns) {
            Ok(id) => id == self.netns_id,
            Err(
                OpenPodError::Missing(_)
                | OpenPodError::NotNamespace(_)
                | OpenPodError::HostNamespace(_),
            ) => false,
            Err(OpenPodError::Io { .. }) => true,
        }
    }
}
