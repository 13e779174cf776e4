// SPDX-License-Identifier: Apache-2.0
//! Finds the current sandbox of a pod of this node by the pod's records.

use super::{PodRail, netns_seen};
use crate::{
    Attachment, Phase, Store,
    store::{Record, StoreError},
};
use rdma_netns::{OpenPodError, netns::Netns};
use std::{cmp::Reverse, path::PathBuf};

/// The pod's namespace cannot be found or opened.
#[derive(Debug, thiserror::Error)]
pub enum PodNetnsError {
    /// The namespace exists, but cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenPodError),
    /// The records cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No readable record says that the pod has devices.
    #[error(
        "{state_dir:?} has no record of pod {pod}: the pod has no rails of this plugin, or --state-dir is wrong"
    )]
    NoRecord {
        /// The pod, as `namespace/name`.
        pod: String,
        /// Directory with the records.
        state_dir: PathBuf,
    },
    /// None of the namespaces in the pod's records still exists.
    #[error("the network namespace of pod {pod} is gone from {path:?}")]
    Gone {
        /// The pod, as `namespace/name`.
        pod: String,
        /// Path of the pod's namespace in one of the records.
        path: PathBuf,
    },
}

/// A pod's network namespace, and the pod's rails of all networks.
#[derive(Debug)]
pub struct Sandbox {
    /// The namespace.
    pub netns: Netns,
    /// The rails, in the order of the networks' names.
    pub rails: Vec<PodRail>,
}

/// Opens the sandbox of `pod` (`namespace/name`). Records of earlier pods with this name may still exist, so this
/// function tries the namespaces of the records in turn, from the newest record, and opens the first that still exists.
///
/// # Errors
/// See [`PodNetnsError`].
pub fn open(pod: &str, store: &Store) -> Result<Sandbox, PodNetnsError> {
    let attachments = attachments(pod, store)?;
    let mut gone = None;
    for attachment in newest_first(&attachments) {
        // inside a container, the path of the namespace can differ from the recorded path
        match Netns::open(&netns_seen(attachment.netns.clone(), attachment.netns_id)) {
            Ok(netns) if netns.id() == attachment.netns_id => {
                let of_sandbox = attachments.iter().filter(|it| it.netns_id == netns.id());
                let rails = of_sandbox.flat_map(|it| &it.rails).map(PodRail::from);
                let rails = rails.collect();
                return Ok(Sandbox { netns, rails });
            }
            Err(error @ OpenPodError::Io { .. }) => return Err(error.into()),
            _ => gone = Some(attachment.netns.clone()),
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

fn newest_first(attachments: &[Attachment]) -> Vec<&Attachment> {
    let mut ordered: Vec<&Attachment> = attachments.iter().collect();
    ordered.sort_by_key(|it| Reverse(it.observed_at));
    ordered
}

/// Returns the readable records of `pod` whose devices are not restored, without returned rails.
fn attachments(pod: &str, store: &Store) -> Result<Vec<Attachment>, StoreError> {
    let mut found = vec![];
    for key in store.keys(None)? {
        if let Record::Good(attachment) = store.load(&key)?
            && attachment.pod.as_deref() == Some(pod)
            && attachment.phase != Phase::Restored
        {
            found.push(attachment.without_returned());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    /// Writes a record of pod `default/web` with one rail, which has the container's name. The record names the test's
    /// own namespace if `alive` is true, and otherwise a namespace that does not exist.
    fn record(store: &Store, container: &str, netns: &Netns, alive: bool, observed_at: u64) {
        let id = netns.id();
        let record = json!({
            "format": 1,
            "key": {"network": "rdma", "container": container, "interface": "eth0"},
            "pod": "default/web",
            "bootId": "",
            "observedAt": observed_at,
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
            "rails": [{"podName": container}],
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
        record(&store, "a", &own, false, 2);
        assert_eq!(
            refused("default/web"),
            "the network namespace of pod default/web is gone from \"/proc/self/ns/net\""
        );
        record(&store, "b", &own, true, 1);
        record(&store, "c", &own, true, 1);
        let found = open("default/web", &store).expect("a sandbox");
        assert_eq!(found.netns.id(), own.id());
        let rails: Vec<&str> = found.rails.iter().map(|it| &*it.name).collect();
        assert_eq!(rails, ["b", "c"]);
        assert!(refused("default/other").contains("has no record of pod default/other"));
        let all = attachments("default/web", &store).expect("records");
        let newest = newest_first(&all)[0];
        assert_eq!(newest.key.container, "a", "its namespace is tried first");
    }
}
