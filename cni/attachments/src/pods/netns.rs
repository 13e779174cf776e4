// SPDX-License-Identifier: Apache-2.0
//! The network namespace of a pod of this node, by its record.

use super::netns_seen;
use crate::{
    Attachment, Store,
    store::{Record, StoreError},
};
use rdma_netns::netns::{Netns, OpenError};
use std::{io, path::PathBuf};

/// The pod's namespace cannot be found or opened.
#[derive(Debug, thiserror::Error)]
pub enum PodNetnsError {
    /// The namespace is there, and cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The records cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store has no record that names the pod.
    #[error(
        "{state_dir:?} has no record of pod {pod}: the pod has no rails of this plugin, or --state-dir is wrong"
    )]
    NoRecord {
        /// `namespace/name`
        pod: String,
        /// Directory with the records.
        state_dir: PathBuf,
    },
    /// The pod has ended.
    #[error("the network namespace of pod {pod} is gone from {path:?}")]
    Gone {
        /// `namespace/name`
        pod: String,
        /// Recorded path of the namespace.
        path: PathBuf,
    },
}

/// Opens the namespace of the current sandbox of `pod` (`namespace/name`). Records of earlier sandboxes may still exist.
///
/// # Errors
/// As [`PodNetnsError`] says.
pub fn open(pod: &str, store: &Store) -> Result<Netns, PodNetnsError> {
    let mut gone = None;
    for attachment in attachments(pod, store)? {
        // inside a container, the namespace may have another path than the recorded one
        match Netns::open(&netns_seen(attachment.netns.clone(), attachment.netns_id)) {
            Ok(netns) if netns.id() == attachment.netns_id => return Ok(netns),
            Err(OpenError::Io { source, path }) if source.kind() != io::ErrorKind::NotFound => {
                return Err(OpenError::Io { source, path }.into());
            }
            _ => gone = Some(attachment.netns),
        }
    }
    let pod = pod.to_owned();
    Err(match gone {
        Some(path) => PodNetnsError::Gone { pod, path },
        None => PodNetnsError::NoRecord {
            pod,
            state_dir: store.root().to_owned(),
        },
    })
}

/// Returns the readable records of a pod.
fn attachments(pod: &str, store: &Store) -> Result<Vec<Attachment>, StoreError> {
    let mut found = vec![];
    for key in store.keys(None)? {
        if let Record::Good(attachment) = store.load(&key)?
            && attachment.pod.as_deref() == Some(pod)
        {
            found.push(*attachment);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    /// Writes a record of pod `default/web`, with the namespace of this test or another one.
    fn record(store: &Store, container: &str, netns: &Netns, alive: bool) {
        let id = netns.id();
        let record = json!({
            "format": 1,
            "key": {"network": "rdma", "container": container, "interface": "eth0"},
            "pod": "default/web",
            "bootId": "",
            "netns": netns.path(),
            "netnsId": {
                "device": id.device,
                "inode": id.inode + u64::from(!alive),
                "cookie": id.cookie,
            },
            "phase": "attached",
            "rdmaMode": null,
            "dad": "wait",
            "acceptRa": false,
            "rails": [],
            "config": {},
        });
        let attachment: Attachment = serde_json::from_value(record).expect("a record");
        let lock = store.lock(&attachment.key).expect("a lock");
        store.save(&attachment).expect("saved");
        drop(lock);
    }

    #[test]
    fn a_pod_is_found_by_the_record_of_the_sandbox_that_lives() {
        let state = tempfile::tempdir().expect("a directory");
        let store = Store::new(state.path());
        let own = Netns::open(Path::new("/proc/self/ns/net")).expect("the own namespace");
        let refused = |pod| {
            let error = open(pod, &store).expect_err("not there");
            error.to_string()
        };
        assert!(refused("default/web").contains("has no record of pod default/web"));
        record(&store, "a", &own, false);
        assert_eq!(
            refused("default/web"),
            "the network namespace of pod default/web is gone from \"/proc/self/ns/net\""
        );
        record(&store, "b", &own, true);
        let found = open("default/web", &store).expect("a namespace");
        assert_eq!(found.id(), own.id());
        assert!(refused("default/other").contains("has no record of pod default/other"));
    }
}
