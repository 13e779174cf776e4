//! The other attachments of the node: who holds what, and what is stale.

use super::{Node, release};
use crate::{
    apply,
    attachment::{Attachment, Key, Phase},
    error::Error,
    store::Record,
};
use rdma_netns::{Kernel, Pod};
use std::time::Duration;

/// The attachments whose pods live, after those whose pods do not were brought home:
/// containerd does not call GC, so that ADD is where a crash is healed. What cannot be
/// healed counts as living, since its devices are not to be had.
///
/// The node's lock is held by the caller.
pub fn heal<K: Kernel>(
    node: &Node<'_, K>,
    own: &Key,
    boot_id: &str,
) -> Result<Vec<Attachment>, Error> {
    let mut living = vec![];
    for key in node.store.keys(None)? {
        let attachment = match node.store.load(&key)? {
            Record::Good(attachment) => *attachment,
            Record::None => continue,
            Record::Corrupt(reason) => {
                log::warn!("the record of {key} cannot be read ({reason}): its DEL puts it right");
                continue;
            }
        };
        if key == *own {
            // the caller has its lock: whoever wrote it is dead
            match attachment.phase {
                Phase::Attached if lives(node, &attachment, boot_id) => {
                    return Err(Error::Exists(key.to_string()));
                }
                _ => bring_home(node, &attachment, boot_id)?,
            }
            continue;
        }
        if let Some(attachment) = heal_other(node, attachment, boot_id) {
            living.push(attachment);
        }
    }
    Ok(living)
}

/// The attachments whose pods live; nothing is changed.
pub fn living<K: Kernel>(node: &Node<'_, K>, boot_id: &str) -> Result<Vec<Attachment>, Error> {
    let mut living = vec![];
    for key in node.store.keys(None)? {
        if let Record::Good(attachment) = node.store.load(&key)?
            && lives(node, &attachment, boot_id)
        {
            living.push(*attachment);
        }
    }
    Ok(living)
}

fn heal_other<K: Kernel>(
    node: &Node<'_, K>,
    attachment: Attachment,
    boot_id: &str,
) -> Option<Attachment> {
    let complete = attachment.phase == Phase::Attached;
    if complete && lives(node, &attachment, boot_id) {
        return Some(attachment);
    }
    // an ADD or DEL that is under way holds the lock; a killed one does not
    let lock = match node.store.try_lock(&attachment.key) {
        Ok(Some(lock)) => lock,
        Ok(None) => return Some(attachment),
        Err(error) => {
            log::warn!("{}: {error}", attachment.key);
            return Some(attachment);
        }
    };
    log::info!(
        "{}: its ADD was cut short, or its pod is gone: healing",
        attachment.key
    );
    let healed = bring_home(node, &attachment, boot_id)
        .and_then(|()| Ok(node.store.remove(&attachment.key, lock)?));
    match healed {
        Ok(()) => None,
        Err(error) => {
            log::warn!("{}: cannot be healed: {error}", attachment.key);
            Some(attachment)
        }
    }
}

fn bring_home<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    boot_id: &str,
) -> Result<(), Error> {
    if attachment.boot_id == boot_id {
        let pod = release::pod_of(node, attachment)?;
        apply::restore(node.kernel, pod.as_ref(), attachment, Duration::ZERO)?;
    }
    release::addresses(node, attachment, None)
}

fn lives<K: Kernel>(node: &Node<'_, K>, attachment: &Attachment, boot_id: &str) -> bool {
    attachment.boot_id == boot_id
        && node
            .kernel
            .open_pod(&attachment.netns)
            .is_ok_and(|pod| pod.id() == attachment.netns_id)
}
