// SPDX-License-Identifier: Apache-2.0
//! GC: restores the attachments of its network that the runtime no longer lists.

use super::teardown;
use crate::{error::Error, ipam::Ipam, node::Node};
use attachments::{
    Key,
    store::{Record, StoreError},
};
use cni_protocol::{
    SpecVersion, ValidAttachment,
    lock::{self, LIMIT},
};
use rdma_netns::{InterfaceName, Kernel};
use std::time::Duration;

/// Number of rail names that GC assumes for an attachment whose rails are unknown. No node has as many rails.
const MOST_RAILS: usize = 64;

/// Detaches every recorded attachment that is not in `cni.dev/valid-attachments`. Without this list, GC detaches
/// nothing, and does not call IPAM.
pub fn gc<K: Kernel>(node: &Node<'_, K>) -> Result<(), Error> {
    gc_within(node, LIMIT)
}

/// Runs [`gc`]. Each attachment gets `time` for its locks, even after the verb's time limit. After one process has held
/// a lock for all of `time`, later attachments get only the rest of the verb's time.
pub fn gc_within<K: Kernel>(node: &Node<'_, K>, mut time: Duration) -> Result<(), Error> {
    node.conf.network.since("GC", SpecVersion::V1_1_0)?;
    let Some(valid) = &node.conf.network.valid_attachments else {
        log::info!("the configuration has no cni.dev/valid-attachments: GC removes nothing");
        return Ok(());
    };
    let is_valid = |key: &Key| {
        valid.iter().any(
            |ValidAttachment {
                 container,
                 interface,
             }| { *container == key.container && *interface == *key.interface },
        )
    };
    let keys = node.store.sweep(Some(&node.conf.network.name), None);
    let keys = keys.map_err(Error::State)?;
    let mut errors = vec![];
    for key in keys.into_iter().filter(|key| !is_valid(key)) {
        log::info!("{key}: detaching, because the runtime no longer lists this attachment");
        if let Err(error) = detach(&node.with_lock_deadline(time), &key) {
            if is_kept(&error) {
                time = Duration::ZERO;
            }
            let error = Error::Of {
                key,
                source: Box::new(error),
            };
            log::error!("{error}");
            errors.push(error);
        }
    }
    if !node.conf.names_are_known {
        log::warn!(
            "interfaceName is wrong, so the rails' names are unknown: GC does not call the IPAM plugin"
        );
    } else if let Some(name) = &node.conf.ipam {
        let known = known(node, valid).map_err(Error::RetainedAddresses);
        let forwarded = known.and_then(|known| {
            let ipam = Ipam::find(name, node.environment, &node.conf.raw)?;
            Ok(ipam.gc(&known)?)
        });
        errors.extend(forwarded.err());
    }
    match errors.len() {
        0 => Ok(()),
        1 => errors.pop().map_or(Ok(()), Err),
        _ => Err(Error::Several(errors)),
    }
}

/// Returns true if one process held a lock during the whole wait. Returns false if several processes held it in
/// turn, such as ADDs of starting pods: the next attachment then gets the full time again.
fn is_kept(error: &Error) -> bool {
    matches!(error, Error::State(error) | Error::Unfinished(error) if lock::is_kept(error))
}

/// Returns the list of valid attachments for IPAM. Adds an element for each rail's name, because IPAM stores leases
/// under rail names. An attachment keeps its leases while its record exists. If a record is missing or unreadable, the
/// attachment keeps the leases of all names that its rails can have.
fn known<K: Kernel>(
    node: &Node<'_, K>,
    valid: &[ValidAttachment],
) -> Result<Vec<ValidAttachment>, StoreError> {
    let mut known = valid.to_vec();
    let mut add = |container: &str, interface: &InterfaceName| {
        known.push(ValidAttachment {
            container: container.to_owned(),
            interface: interface.to_string(),
        });
    };
    let mut readable = vec![];
    let mut unknown = vec![];
    for key in node.store.keys(Some(&node.conf.network.name))? {
        match node.store.record(&key) {
            Record::Good(attachment) => {
                for rail in &attachment.rails {
                    add(&key.container, &rail.pod_name);
                }
                readable.push(key);
            }
            Record::Newer(_) | Record::Corrupt(_) => {
                add(&key.container, &key.interface);
                unknown.push(key.container);
            }
            // the DEL of the attachment has just finished
            Record::None => {}
        }
    }
    let is_readable = |it: &&ValidAttachment| {
        let is_it = |key: &Key| key.container == it.container && *key.interface == *it.interface;
        readable.iter().any(is_it)
    };
    let without = valid.iter().filter(|it| !is_readable(it));
    unknown.extend(without.map(|it| it.container.clone()));
    for container in unknown {
        for name in (0..MOST_RAILS).filter_map(|rail| node.conf.interface_name.name(rail)) {
            add(&container, &name);
        }
    }
    Ok(known)
}

fn detach<K: Kernel>(node: &Node<'_, K>, key: &Key) -> Result<(), Error> {
    let Some(lock) = node.store.try_lock(key).map_err(Error::State)? else {
        log::info!("{key}: GC skips this attachment, because another verb is running for it");
        return Ok(());
    };
    match node.store.load(key).map_err(Error::State)? {
        Record::Good(mut attachment) => {
            let pod = teardown::pod_of(node, &attachment)?;
            teardown::attachment(node, &mut attachment, pod.as_ref(), lock)
        }
        Record::None => node.store.remove(key, lock).map_err(Error::Forget),
        Record::Newer(format) => Err(Error::Newer {
            key: key.clone(),
            format,
        }),
        Record::Corrupt(reason) => Err(Error::Unreadable(reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_one_process_keeps_is_not_waited_for_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("lock");
        let open = || lock::open(&path).expect("a lock");
        let _held = lock::attempt(open())
            .expect("a lock")
            .expect("nobody has it");
        let second = Duration::from_secs(1);
        for error in [Error::State, Error::Unfinished] {
            let busy = lock::wait(open(), second).expect_err("it is held");
            let error = error(StoreError::new("lock", &path, busy));
            assert!(is_kept(&error), "{error}");
            let other = std::io::ErrorKind::TimedOut.into();
            let error = Error::State(StoreError::new("lock", &path, other));
            assert!(!is_kept(&error), "{error}");
        }
    }
}
