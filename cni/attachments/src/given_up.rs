// SPDX-License-Identifier: Apache-2.0
//! What netdevs came back to the host without: a file for each, which `doctor` reads.
//!
//! ```text
//! <stateDir>/given-up/<netdev>.json
//! ```
//! It is told as long as the netdev still lacks it, in this boot. The file goes when another pod
//! gets the netdev, as it is then, or brings it back whole. An attachment that gets it once more, as the
//! second try of an ADD does, is no other pod.

use crate::{attribute::Attribute, record::Attachment, store::StoreError};
use cni_protocol::state_file;
use rdma_netns::{InterfaceName, Link};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A netdev that is back on the host, and not as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// The boot that it belongs to.
    pub boot_id: String,
    /// The pod that had it, for people.
    pub holder: String,
    /// The netdev as it was.
    #[serde(rename = "home")]
    pub host_link: Link,
    /// When it was so, as [`rdma_netns::Observed::at`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_at: Option<u64>,
    /// What it does not have.
    pub lacks: Vec<Lack>,
}

/// Something that a netdev did not get back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lack {
    /// What.
    pub attribute: Attribute,
    /// Why, a sentence with the change that was refused.
    pub why: String,
}

impl Lack {
    /// Whether setting it was tried: of a route that its record does not say wholly, and of a netdev that is gone, it is
    /// not.
    pub fn was_tried(&self) -> bool {
        !matches!(
            self.attribute,
            Attribute::UnkeptRoute(_) | Attribute::Netdev
        )
    }
}

/// What an earlier try of `attachment` itself has left of the netdev that was `host_link`.
pub fn earlier(root: &Path, attachment: &Attachment, host_link: &Link) -> Option<Note> {
    let text = state_file::read(&path(root, &host_link.name)).ok()?;
    let note: Note = serde_json::from_slice(&text).ok()?;
    let is_own = note.boot_id == attachment.boot_id && note.holder == attachment.holder();
    is_own.then_some(note)
}

/// Forgets what the netdevs of `attachment`, which a pod gets, did not have: they are taken as they
/// are.
pub fn forget(root: &Path, attachment: &Attachment) {
    let host_links = attachment
        .rails
        .iter()
        .filter_map(|it| it.host_link.as_ref());
    for host_link in host_links.filter(|host_link| earlier(root, attachment, host_link).is_none()) {
        if let Err(error) = remove(root, &host_link.name) {
            log::warn!("{error}");
        }
    }
}

/// All that is written down, by the netdevs' names; a file that is none is passed over.
pub fn read(root: &Path) -> Result<Vec<Note>, StoreError> {
    let directory = directory(root);
    let failed = |source| StoreError::new("read", &directory, source);
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.map_err(failed)?,
    };
    let mut notes: Vec<Note> = vec![];
    for entry in entries {
        let text = state_file::read(&entry.map_err(failed)?.path());
        notes.extend(text.ok().and_then(|it| serde_json::from_slice(&it).ok()));
    }
    notes.sort_by(|a, b| a.host_link.name.cmp(&b.host_link.name));
    Ok(notes)
}

fn directory(root: &Path) -> PathBuf {
    root.join("given-up")
}

fn path(root: &Path, netdev: &InterfaceName) -> PathBuf {
    directory(root).join(format!("{netdev}.json"))
}

/// Writes `note` down.
///
/// # Errors
/// It cannot be written.
pub fn write(root: &Path, note: &Note) -> Result<(), StoreError> {
    let path = path(root, &note.host_link.name);
    let write = || {
        fs::create_dir_all(directory(root))?;
        state_file::replace(&path, &serde_json::to_vec_pretty(note)?, false)
    };
    write().map_err(|source| StoreError::new("write", &path, source))
}

/// Takes away what is written of `netdev`.
///
/// # Errors
/// It cannot be removed.
pub fn remove(root: &Path, netdev: &InterfaceName) -> Result<(), StoreError> {
    let path = path(root, netdev);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::new("remove", &path, error))
        }
        _ => Ok(()),
    }
}
