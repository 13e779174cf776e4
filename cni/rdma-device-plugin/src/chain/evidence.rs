// SPDX-License-Identifier: Apache-2.0
//! Whether the runtime calls the plugins of a network's own directory, at ADD and at DEL: `rdma-cni` notes it,
//! called by an entry with `detect` (its `detect.rs`), as `<stateDir>/detected/<VERB>@<network>`.

use rdma_resources::FileError;
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

/// Both, of one network, are the evidence.
const VERBS: [&str; 2] = ["ADD", "DEL"];

/// Where the notes are.
pub fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join("detected")
}

/// The networks whose directories the runtime reads.
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

/// Makes the directory for the notes, which `rdma-cni` does not: nobody asks it to note anything any more.
pub(super) fn prepare(state_dir: &Path) -> Result<(), FileError> {
    let path = directory(state_dir);
    fs::create_dir_all(&path).map_err(|error| FileError::new("make", &path, error))
}

/// The runtime has made a pod's network without calling the directory's plugins: what was noted before does not
/// count any more.
///
/// # Errors
/// A note cannot be removed.
pub fn forget(state_dir: &Path, network: &str) -> Result<(), FileError> {
    for verb in VERBS {
        let path = directory(state_dir).join(format!("{verb}@{network}"));
        super::file::remove(&path)?;
    }
    Ok(())
}

/// Removes all that was noted.
pub(crate) fn remove(state_dir: &Path) -> Result<(), FileError> {
    let path = directory(state_dir);
    match fs::remove_dir_all(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FileError::new("remove", &path, error))
        }
        _ => Ok(()),
    }
}
