//! The other attachments of the node: their records, and whether their pods live.

use super::Node;
use crate::{
    attachment::{Attachment, Key, Phase, Rail},
    error::Error,
    store::{Record, StoreError},
};
use rdma_netns::{Kernel, OpenPodError, Pod};
use std::{net::IpAddr, path::Path};

/// The attachments whose pods live, or that a verb is at work on; nothing is changed.
pub fn living<K: Kernel>(node: &Node<'_, K>, boot_id: &str) -> Result<Vec<Attachment>, Error> {
    let mut living = vec![];
    for key in node.store.keys(None)? {
        if let Record::Good(attachment) = load(node, &key)
            && (is_settled(node, &attachment, boot_id) || is_busy(node, &attachment, boot_id))
        {
            living.push(*attachment);
        }
    }
    Ok(living)
}

/// The other records of this boot whose devices are not home yet, whether their pods live or not:
/// what they have of the node's settings is taken away with the last of them.
pub fn on_this_boot<K>(
    node: &Node<'_, K>,
    attachment: &Attachment,
) -> Result<Vec<Attachment>, StoreError> {
    let keys = node.store.keys(None)?;
    let others = keys.iter().filter(|key| **key != attachment.key);
    let good = others.filter_map(|key| match load(node, key) {
        Record::Good(other) => Some(*other),
        _ => None,
    });
    let counts = |it: &Attachment| it.boot_id == attachment.boot_id && it.phase != Phase::Home;
    Ok(good.filter(counts).collect())
}

/// The other records that cannot be read: nobody knows what of the node's settings they have.
pub fn unreadable<K>(node: &Node<'_, K>, attachment: &Attachment) -> Result<Vec<Key>, StoreError> {
    let mut keys = node.store.keys(None)?;
    keys.retain(|key| {
        let is_other = *key != attachment.key;
        is_other && matches!(load(node, key), Record::Corrupt(_) | Record::Newer(_))
    });
    Ok(keys)
}

/// Whether an ADD or DEL of it is under way, and has not brought its devices home.
fn is_busy<K: Kernel>(node: &Node<'_, K>, attachment: &Attachment, boot_id: &str) -> bool {
    let is_away = attachment.boot_id == boot_id && attachment.phase != Phase::Home;
    is_away && node.store.is_at_work(&attachment.key)
}

/// Whether `ip` is an address of another attachment whose pod lives.
pub fn is_given_to_another<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    ip: IpAddr,
) -> bool {
    let has = |rail: &Rail| rail.given.addresses.iter().any(|address| address.ip == ip);
    let keys = node.store.keys(None).unwrap_or_default();
    let others = keys.iter().filter(|key| **key != attachment.key);
    let mut others = others.filter_map(|key| match load(node, key) {
        Record::Good(other) if is_settled(node, &other, &attachment.boot_id) => Some(other),
        _ => None,
    });
    others.any(|other| other.rails.iter().any(has))
}

/// The record of `key`; one that cannot be read counts as unreadable for its own verbs only,
/// and stops no other pod.
pub fn load<K>(node: &Node<'_, K>, key: &Key) -> Record {
    let record = node.store.load(key);
    record.unwrap_or_else(|error| Record::Corrupt(error.to_string()))
}

/// Whether its ADD has answered, and its pod lives.
pub fn is_settled<K: Kernel>(node: &Node<'_, K>, attachment: &Attachment, boot_id: &str) -> bool {
    attachment.phase == Phase::Attached
        && lives(node.kernel, attachment, &attachment.netns, boot_id)
}

/// Whether its pod, whose namespace is to be at `netns`, lives. A namespace that cannot be looked at
/// for another reason than that it is gone counts as living: nothing is taken from it.
pub fn lives<K: Kernel>(kernel: &K, attachment: &Attachment, netns: &Path, boot_id: &str) -> bool {
    if attachment.boot_id != boot_id {
        return false;
    }
    match kernel.open_pod(netns) {
        Ok(pod) => pod.id() == attachment.netns_id,
        Err(
            OpenPodError::Missing(_)
            | OpenPodError::NotNamespace(_)
            | OpenPodError::HostNamespace(_),
        ) => false,
        Err(OpenPodError::Io { .. }) => true,
    }
}
