// SPDX-License-Identifier: Apache-2.0
//! The attachments of the node, and the check whether their pods are alive.

use crate::{
    record::{Attachment, Key, Phase, Rail},
    stage::Stage,
    store::{Record, Store, StoreError},
};
use rdma_netns::{Kernel, OpenPodError};
use std::{borrow::Borrow, net::IpAddr, path::Path};

impl Store {
    /// Returns the readable attachments that are [`settled`], and the unrestored attachments for which a CNI command is
    /// running. Leaves out returned rails ([`Attachment::without_returned`]).
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn living<K: Kernel>(
        &self,
        kernel: &K,
        boot_id: &str,
    ) -> Result<Vec<Attachment>, StoreError> {
        let records = self.good()?;
        let settled = settled(kernel, boot_id, &records);
        let lives = |(it, is_settled)| {
            let it: Attachment = it;
            (is_settled || self.is_busy(&it, boot_id)).then_some(it)
        };
        Ok(records.into_iter().zip(settled).filter_map(lives).collect())
    }

    /// Returns the readable records of the boot `boot_id` whose devices are not restored yet. Does not check whether
    /// their pods are alive.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn of_boot(&self, boot_id: &str) -> Result<Vec<Attachment>, StoreError> {
        let mut records = self.good()?;
        records.retain(|it| it.is_away(boot_id));
        Ok(records)
    }

    /// Returns the readable records. Leaves out returned rails ([`Attachment::without_returned`]).
    fn good(&self) -> Result<Vec<Attachment>, StoreError> {
        let keys = self.keys(None)?;
        let good = keys.iter().filter_map(|key| match self.record(key) {
            Record::Good(attachment) => Some(attachment.without_returned()),
            _ => None,
        });
        Ok(good.collect())
    }

    /// Returns the other attachments of the same boot that are not restored yet. Leaves out unreadable records.
    /// Attachments can share settings of the node: a restore removes such a setting only with the last of the
    /// attachments that share it.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn on_this_boot(&self, attachment: &Attachment) -> Result<Vec<Attachment>, StoreError> {
        let mut others = self.of_boot(&attachment.boot_id)?;
        others.retain(|other| other.key != attachment.key);
        Ok(others)
    }

    /// Returns the pod's other attachments that may have netdevs in the pod. Such an attachment may be incomplete: its
    /// ADD is running or was killed, or its DEL has not yet returned a netdev to the host.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn of_same_pod(&self, attachment: &Attachment) -> Result<Vec<Attachment>, StoreError> {
        let keys = self.keys(None)?;
        // read only the records that can match: a node has many pods, but a pod has few attachments
        let keys = keys
            .iter()
            .filter(|it| it.container == attachment.key.container);
        let others = keys.filter_map(|key| match self.record(key) {
            Record::Good(other) => Some(*other),
            _ => None,
        });
        let has_netdevs = |it: &Attachment| match it.phase {
            Phase::Attaching | Phase::Attached => true,
            Phase::Detaching => it.rails.iter().any(|rail| rail.host_link.is_some()),
            Phase::Restored => false,
        };
        let is_of_pod = |it: &Attachment| {
            it.netns_id == attachment.netns_id && it.key != attachment.key && has_netdevs(it)
        };
        Ok(others.filter(is_of_pod).collect())
    }

    /// Returns the keys of records that are corrupt, or that a newer version wrote. Their pods and node settings are
    /// unknown.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn unreadable(&self) -> Result<Vec<Key>, StoreError> {
        let mut keys = self.keys(None)?;
        keys.retain(|key| matches!(self.record(key), Record::Corrupt(_) | Record::Newer(_)));
        Ok(keys)
    }

    /// Returns the other settled attachments ([`settled`]) that have the address `ip`.
    pub fn settled_with<K: Kernel>(
        &self,
        kernel: &K,
        attachment: &Attachment,
        ip: IpAddr,
    ) -> Vec<Attachment> {
        let mut others = self.good().unwrap_or_default();
        others.retain(|other| other.key != attachment.key && other.rails_with(ip).next().is_some());
        let settled = settled(kernel, &attachment.boot_id, &others);
        let others = others.into_iter().zip(settled);
        others
            .filter_map(|(it, is_settled)| is_settled.then_some(it))
            .collect()
    }

    /// Returns the record of `key`. If the file cannot be read, the record counts as corrupt: CNI commands of other
    /// pods must be able to continue.
    pub fn record(&self, key: &Key) -> Record {
        let record = self.load(key);
        record.unwrap_or_else(|error| Record::Corrupt(error.to_string()))
    }

    /// Returns true while a CNI command is running for the attachment and the devices are not restored.
    fn is_busy(&self, attachment: &Attachment, boot_id: &str) -> bool {
        attachment.is_away(boot_id) && self.is_at_work(&attachment.key)
    }
}

/// Returns one value for each of `attachments`, in order. The value is true if the attachment is settled: its ADD has
/// answered and its pod is alive.
pub fn settled<K: Kernel>(
    kernel: &K,
    boot_id: &str,
    attachments: &[impl Borrow<Attachment>],
) -> Vec<bool> {
    let has_answered = |it: &&Attachment| it.phase == Phase::Attached;
    let attachments = attachments.iter().map(Borrow::borrow);
    let answered = attachments.clone().filter(has_answered);
    let pods: Vec<_> = answered.map(|it| (it, &*it.netns)).collect();
    let mut lives = living(kernel, boot_id, &pods).into_iter();
    let is_settled = |it| has_answered(&it) && lives.next().unwrap_or(true);
    attachments.map(is_settled).collect()
}

/// Returns one value for each of `pods`, in order. The value is true if the pod is alive. An element of `pods` is an
/// attachment and the expected path of its namespace. If the namespace exists but cannot be opened, the pod counts as
/// alive, and keeps its devices.
fn living<K: Kernel>(kernel: &K, boot_id: &str, pods: &[(&Attachment, &Path)]) -> Vec<bool> {
    let is_of_boot = |(it, _): &(&Attachment, &Path)| it.boot_id == boot_id;
    let of_boot = pods.iter().filter(|pod| is_of_boot(pod));
    let netns: Vec<&Path> = of_boot.map(|(_, netns)| *netns).collect();
    let mut ids = kernel.netns_ids(&netns).into_iter();
    let lives = |pod: &(&Attachment, &Path)| {
        is_of_boot(pod)
            && match ids.next() {
                Some(Ok(id)) => id == pod.0.netns_id,
                Some(Err(
                    OpenPodError::Missing(_)
                    | OpenPodError::NotNamespace(_)
                    | OpenPodError::HostNamespace(_),
                )) => false,
                Some(Err(_)) | None => true,
            }
    };
    pods.iter().map(lives).collect()
}

impl Attachment {
    /// Returns true if the attachment may have changed devices or node settings in the boot `boot_id`, and no restore
    /// has undone the changes. A reboot undoes all of them.
    pub fn is_away(&self, boot_id: &str) -> bool {
        self.boot_id == boot_id && self.phase != Phase::Restored
    }

    /// Returns true if the attachment's ADD has answered and its pod is alive.
    pub fn is_settled<K: Kernel>(&self, kernel: &K, boot_id: &str) -> bool {
        settled(kernel, boot_id, &[self]) == [true]
    }

    /// Returns true if the attachment's pod is alive. `netns` is the expected path of the pod's namespace. A pod whose
    /// namespace cannot be opened counts as alive.
    pub fn lives<K: Kernel>(&self, kernel: &K, netns: &Path, boot_id: &str) -> bool {
        living(kernel, boot_id, &[(self, netns)]) == [true]
    }

    /// Returns the rails that have the address `ip`.
    pub fn rails_with(&self, ip: IpAddr) -> impl Iterator<Item = &Rail> {
        let has = move |rail: &&Rail| rail.assigned.addresses.iter().any(|it| it.ip == ip);
        self.rails.iter().filter(has)
    }

    /// Returns the record without [returned](Stage::Returned) rails. Other pods may use the devices of these rails.
    pub fn without_returned(mut self) -> Self {
        self.rails.retain(|rail| rail.stage != Stage::Returned);
        self
    }
}
