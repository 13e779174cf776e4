// SPDX-License-Identifier: Apache-2.0
//! Attributes that a netdev lacks after its return to the host. `rdma-cni` writes a file for each such netdev, and
//! `doctor` reads the files.
//!
//! ```text
//! <stateDir>/given-up/<netdev>.json
//! ```
//! `doctor` reports an attribute while the netdev lacks it in this boot. `rdma-cni` removes the file when it restores
//! the netdev completely, or when another attachment gets the netdev. `rdma-cni` keeps the file when the same
//! attachment gets the netdev again, as in the second try of an ADD.

use crate::{attribute::Attribute, record::Attachment, store::StoreError};
use cni_protocol::state_file;
use rdma_netns::{InterfaceName, Link};
use rdma_resources::file;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A netdev that is back on the host without some of its recorded attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// Boot id of the boot in which the netdev returned.
    pub boot_id: String,
    /// The pod that had the netdev, as text for messages.
    pub holder: String,
    /// The netdev in its recorded host state.
    #[serde(rename = "home")]
    pub host_link: Link,
    /// Time of the observation in the record, as in [`rdma_netns::Observed::at`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_at: Option<u64>,
    /// The attributes that the netdev lacks.
    pub lacks: Vec<Lack>,
}

/// An attribute that could not be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lack {
    /// The attribute.
    pub attribute: Attribute,
    /// The reason, as a sentence that names the refused change.
    pub why: String,
}

impl Lack {
    /// Returns true if `rdma-cni` tried to restore the attribute. It cannot try in two cases: the netdev does not exist
    /// any more, or the record has only a part of a route.
    pub fn was_tried(&self) -> bool {
        !matches!(
            self.attribute,
            Attribute::UnkeptRoute(_) | Attribute::Netdev
        )
    }
}

/// Returns the note about the netdev that is recorded as `host_link`. Returns `None` if no earlier try of the same
/// `attachment` wrote such a note.
pub fn earlier(root: &Path, attachment: &Attachment, host_link: &Link) -> Option<Note> {
    let text = state_file::read(&path(root, &host_link.name)).ok()?;
    let note: Note = serde_json::from_slice(&text).ok()?;
    let is_own = note.boot_id == attachment.boot_id && note.holder == attachment.holder();
    is_own.then_some(note)
}

/// Removes the notes that other attachments wrote about the netdevs of `attachment`. The notes are obsolete: the record
/// of `attachment` has the netdevs' present state as their host state.
pub fn forget(root: &Path, attachment: &Attachment) {
    let host_links = attachment
        .rails
        .iter()
        .filter_map(|it| it.host_link.as_ref());
    for host_link in host_links.filter(|host_link| earlier(root, attachment, host_link).is_none()) {
        if let Err(error) = remove(root, &host_link.name) {
            log::warn!(
                "{}: {error}; remove this obsolete list of missing attributes",
                host_link.name
            );
        }
    }
}

/// Returns all notes, in the order of the netdevs' names. Ignores files that contain no note.
pub fn read(root: &Path) -> Result<Vec<Note>, StoreError> {
    let directory = directory(root);
    let names = state_file::names(&directory);
    let names = names.map_err(|source| StoreError::new("read", &directory, source))?;
    let note = |name: &String| {
        let text = state_file::read(&directory.join(name)).ok()?;
        serde_json::from_slice(&text).ok()
    };
    let mut notes: Vec<Note> = names.iter().filter_map(note).collect();
    notes.sort_by(|a, b| a.host_link.name.cmp(&b.host_link.name));
    Ok(notes)
}

fn directory(root: &Path) -> PathBuf {
    root.join("given-up")
}

fn path(root: &Path, netdev: &InterfaceName) -> PathBuf {
    directory(root).join(format!("{netdev}.json"))
}

/// Writes `note`.
///
/// # Errors
/// The file cannot be written.
pub fn write(root: &Path, note: &Note) -> Result<(), StoreError> {
    let path = path(root, &note.host_link.name);
    let write = || {
        fs::create_dir_all(directory(root))?;
        state_file::replace(&path, &serde_json::to_vec_pretty(note)?, false)
    };
    write().map_err(|source| StoreError::new("write", &path, source))
}

/// Removes the note about `netdev`.
///
/// # Errors
/// The file cannot be removed.
pub fn remove(root: &Path, netdev: &InterfaceName) -> Result<(), StoreError> {
    file::remove(&path(root, netdev)).map(drop)
}
