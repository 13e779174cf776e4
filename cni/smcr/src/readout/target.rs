// SPDX-License-Identifier: Apache-2.0
//! Opening the requested namespace.

use super::arguments::{Arguments, Target};
use attachments::{
    Attachment, Store,
    pods::netns_seen,
    store::{Record, StoreError},
};
use rdma_netns::netns::{Netns, OpenError};
use std::{
    io,
    path::{Path, PathBuf},
};

/// Directories in which `ip netns` and container runtimes mount namespaces. On most nodes the second is a link to the
/// first.
const DIRECTORIES: [&str; 2] = ["/run/netns", "/var/run/netns"];

/// The namespace cannot be found or opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum TargetError {
    #[error("there is no network namespace {0:?} below /run/netns or /var/run/netns")]
    Name(String),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("cannot open the network namespace of this program: {0}")]
    Own(io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "{state_dir:?} has no record of pod {pod}: the pod has no rails of this plugin, or --state-dir is wrong"
    )]
    Pod { pod: String, state_dir: PathBuf },
    #[error("the network namespace of pod {pod} is gone from {path:?}")]
    Gone { pod: String, path: PathBuf },
}

pub(super) fn open(arguments: &Arguments) -> Result<Netns, TargetError> {
    match &arguments.target {
        Target::Own => Netns::current().map_err(TargetError::Own),
        Target::Path(path) => Ok(Netns::open(path)?),
        Target::Name(name) => named(name),
        Target::Pod(pod) => of_pod(pod, &arguments.state_dir),
    }
}

fn named(name: &str) -> Result<Netns, TargetError> {
    for directory in DIRECTORIES {
        match Netns::open(&Path::new(directory).join(name)) {
            Err(OpenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            opened => return Ok(opened?),
        }
    }
    Err(TargetError::Name(name.to_owned()))
}

/// Opens the namespace of the pod's current sandbox. Records of earlier sandboxes may still exist.
fn of_pod(pod: &str, state_dir: &Path) -> Result<Netns, TargetError> {
    let mut gone = None;
    for attachment in attachments(pod, &Store::new(state_dir))? {
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
        Some(path) => TargetError::Gone { pod, path },
        None => TargetError::Pod {
            pod,
            state_dir: state_dir.to_owned(),
        },
    })
}

/// Returns the readable records of a pod.
fn attachments(pod: &str, store: &Store) -> Result<Vec<Attachment>, TargetError> {
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
            let error = of_pod(pod, state.path()).expect_err("not there");
            error.to_string()
        };
        assert!(refused("default/web").contains("has no record of pod default/web"));
        record(&store, "a", &own, false);
        assert_eq!(
            refused("default/web"),
            "the network namespace of pod default/web is gone from \"/proc/self/ns/net\""
        );
        record(&store, "b", &own, true);
        let found = of_pod("default/web", state.path()).expect("a namespace");
        assert_eq!(found.id(), own.id());
        assert!(refused("default/other").contains("has no record of pod default/other"));
    }

    #[test]
    fn a_file_that_is_no_namespace_is_told() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let arguments = Arguments {
            target: Target::Path(file.path().to_owned()),
            json: false,
            state_dir: PathBuf::new(),
        };
        let error = open(&arguments).expect_err("no namespace");
        assert!(
            error.to_string().ends_with("is no network namespace"),
            "{error}"
        );
    }
}
