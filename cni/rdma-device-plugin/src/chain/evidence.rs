// SPDX-License-Identifier: Apache-2.0
//! Evidence that the runtime calls the plugins of a network's own directory (`<confDir>/<network>/`) at ADD and at DEL.
//! Only some versions of libcni append these plugins to the network's list. `install` and the daemon write an entry
//! with `detect` into this directory. When the runtime calls `rdma-cni` because of this entry, `rdma-cni` writes the
//! file `<stateDir>/detected/<VERB>@<network>` (`detect.rs` of `rdma-cni`). This file is the evidence.

use super::{Chain, record::Record};
use conflist::{Placement, Runtime, placement};
use daemon_conf::chain::Placement as Requested;
use rdma_resources::FileError;
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

/// CNI commands with which the runtime must have called the plugins of a network's own directory before the placement
/// `auto` moves the entry to this directory.
const VERBS: [&str; 2] = ["ADD", "DEL"];

impl Chain {
    /// Returns the place for the entry of `rdma-cni`: the network's CNI list or the network's own directory.
    ///
    /// `auto` means the list with CRI-O, with a named network, or if `rdma-cni` does not query kubelet. Otherwise the
    /// evidence decides. The daemon considers the evidence only if libcni's cache of pods' networks exists and, before
    /// the move, has a file: from this cache it detects later that the runtime no longer reads the directory. `install`
    /// does not check the cache.
    pub(super) fn placement(&self, record: &Record) -> Placement {
        let is_seen =
            || self.cni_cache.as_ref().is_none_or(|it| it.is_dir()) && !self.shows_nothing(record);
        match (self.conf.placement, &self.conf.runtime) {
            (Requested::Directory, _) => Placement::Directory,
            (Requested::Auto, Runtime::Containerd) if self.conf.queries_kubelet() => {
                let read = is_seen().then(|| networks(&self.state_dir));
                Placement::Auto {
                    read: read.unwrap_or_default(),
                }
            }
            (Requested::Auto | Requested::List, _) => Placement::List,
        }
    }

    /// Returns true if libcni's cache is empty and the entry has not yet moved to the network's own directory. The
    /// runtime may then use another cache: kubelet makes an empty directory when it mounts a missing path into the
    /// daemon's pod. After the entry has moved, an empty cache only means that the node has no pods.
    fn shows_nothing(&self, record: &Record) -> bool {
        let has_moved = record.lists_with_entry().any(|it| placement::is_ours(it));
        let files = self.cni_cache.as_ref().map(fs::read_dir);
        !has_moved && files.is_some_and(|it| it.is_ok_and(|mut it| it.next().is_none()))
    }

    /// Returns true if the entry moves to the network's own directory as soon as libcni's cache contains a file.
    pub(super) fn awaits_cache(&self, record: &Record) -> bool {
        matches!(self.placement(record), Placement::Auto { .. })
            && self.shows_nothing(record)
            && !networks(&self.state_dir).is_empty()
    }
}

/// Returns the directory of the evidence.
pub fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join("detected")
}

/// Returns the networks for which evidence shows that the runtime reads their own directories.
pub(super) fn networks(state_dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory(state_dir));
    let names = entries.into_iter().flatten().flatten();
    let names: BTreeSet<String> = names
        .filter_map(|it| it.file_name().into_string().ok())
        .collect();
    let of = |verb: &str| -> BTreeSet<String> {
        let networks = names
            .iter()
            .filter_map(|name| name.strip_prefix(verb)?.strip_prefix('@'));
        networks.map(str::to_owned).collect()
    };
    let [added, deleted] = VERBS.map(of);
    added.intersection(&deleted).cloned().collect()
}

/// Makes the directory for the evidence. `rdma-cni` writes evidence only if this directory exists.
pub(super) fn prepare(state_dir: &Path) -> Result<(), FileError> {
    let path = directory(state_dir);
    fs::create_dir_all(&path).map_err(|error| FileError::new("make", &path, error))
}

/// Removes the evidence of a network whose directory the runtime no longer reads.
///
/// # Errors
/// A file cannot be removed.
pub fn forget(state_dir: &Path, network: &str) -> Result<(), FileError> {
    for verb in VERBS {
        let path = directory(state_dir).join(format!("{verb}@{network}"));
        super::file::remove(&path)?;
    }
    Ok(())
}

pub(crate) fn remove(state_dir: &Path) -> Result<(), FileError> {
    let path = directory(state_dir);
    match fs::remove_dir_all(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FileError::new("remove", &path, error))
        }
        _ => Ok(()),
    }
}
