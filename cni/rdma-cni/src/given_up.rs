//! What netdevs came back to the host without: a file for each, which `doctor` reads.
//!
//! ```text
//! <stateDir>/given-up/<netdev>.json
//! ```
//! It is told as long as the netdev still lacks it, in this boot. The file goes when another pod
//! gets the netdev, as it is then, or brings it back whole. An attachment that gets it once more, as the
//! second try of an ADD does, is no other pod.

use crate::{
    apply::{GivenUp, Restored},
    attachment::Attachment,
    plan::{self, Attribute},
    store::{self, StoreError},
};
use rdma_netns::{InterfaceName, Link, Observed};
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
    pub home: Link,
    /// When it was so, as [`Observed::at`].
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

impl Note {
    /// Why it still lacks what it lacks, a sentence for each thing.
    pub fn left(&self, observed: &Observed) -> Vec<&str> {
        let missing = self.missing(observed);
        let left = self.lacks.iter();
        let left = left.filter(|lack| missing.contains(&lack.attribute));
        left.map(|lack| &*lack.why).collect()
    }

    /// What differs from the netdev as it was.
    fn missing(&self, observed: &Observed) -> Vec<Attribute> {
        let link = observed.host.link(&self.home.name);
        let link = link.filter(|link| link.parent == self.home.parent);
        let Some(link) = link.filter(|_| observed.boot_id == self.boot_id) else {
            return vec![];
        };
        let times = self.observed_at.zip(observed.at);
        let age = times.map_or(0, |(then, now)| now.saturating_sub(then));
        let missing = plan::missing_of(&self.home.aged(age), link);
        missing.iter().filter_map(Attribute::of).collect()
    }
}

/// Writes down what the netdevs of `attachment` are without, and takes away what was written of
/// those that are whole. All that they are without, a sentence for each thing.
pub fn note(root: &Path, attachment: &Attachment, restored: &Restored) -> Vec<String> {
    let mut told = vec![];
    for (index, rail) in attachment.rails.iter().enumerate() {
        let Some(home) = &rail.home else {
            continue;
        };
        let own = restored.given_up.iter().filter(|it| it.rail == index);
        let own = own.map(|GivenUp { attribute, why, .. }| Lack {
            attribute: attribute.clone(),
            why: why.clone(),
        });
        let mut note = earlier(root, attachment, home).unwrap_or_else(|| Note {
            boot_id: attachment.boot_id.clone(),
            holder: attachment.holder(),
            home: home.clone(),
            observed_at: attachment.observed_at,
            lacks: vec![],
        });
        let missing = note.missing(&restored.observed);
        note.lacks.retain(|it| missing.contains(&it.attribute));
        for lack in own {
            note.lacks.retain(|it| it.attribute != lack.attribute);
            note.lacks.push(lack);
        }
        told.extend(note.lacks.iter().map(|lack| lack.why.clone()));
        let done = match note.lacks.is_empty() {
            true => remove(root, &home.name),
            false => write(root, &note),
        };
        if let Err(error) = done {
            log::warn!("{error}");
        }
    }
    told
}

/// What an earlier try of `attachment` itself has left of the netdev that was `home`.
fn earlier(root: &Path, attachment: &Attachment, home: &Link) -> Option<Note> {
    let text = fs::read(path(root, &home.name)).ok()?;
    let note: Note = serde_json::from_slice(&text).ok()?;
    let is_own = note.boot_id == attachment.boot_id && note.holder == attachment.holder();
    is_own.then_some(note)
}

/// Forgets what the netdevs of `attachment`, which a pod gets, did not have: they are taken as they
/// are.
pub fn forget(root: &Path, attachment: &Attachment) {
    let homes = attachment.rails.iter().filter_map(|it| it.home.as_ref());
    for home in homes.filter(|home| earlier(root, attachment, home).is_none()) {
        if let Err(error) = remove(root, &home.name) {
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
        let text = fs::read(entry.map_err(failed)?.path());
        notes.extend(text.ok().and_then(|it| serde_json::from_slice(&it).ok()));
    }
    notes.sort_by(|a, b| a.home.name.cmp(&b.home.name));
    Ok(notes)
}

fn directory(root: &Path) -> PathBuf {
    root.join("given-up")
}

fn path(root: &Path, netdev: &InterfaceName) -> PathBuf {
    directory(root).join(format!("{netdev}.json"))
}

fn write(root: &Path, note: &Note) -> Result<(), StoreError> {
    let path = path(root, &note.home.name);
    let write = || {
        fs::create_dir_all(directory(root))?;
        store::replace(&path, &serde_json::to_vec_pretty(note)?, false)
    };
    write().map_err(|source| StoreError::new("write", &path, source))
}

fn remove(root: &Path, netdev: &InterfaceName) -> Result<(), StoreError> {
    let path = path(root, netdev);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::new("remove", &path, error))
        }
        _ => Ok(()),
    }
}
