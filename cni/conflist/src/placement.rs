// SPDX-License-Identifier: Apache-2.0
//! The place of our entry: the network's list, or a file of ours in the network's own directory.
//!
//! The directory needs a runtime that calls its plugins at ADD **and** at DEL. libcni's cache of a pod's network
//! (`cacheAdd()`, `libcni/api.go`) does not show this, because it contains the text of the list without the appended
//! plugins. For the same reason CRI-O does not call the directory's plugins at DEL: it loads the network from the cache
//! (`loadNetworkFromCache()`, ocicni 0.4.3). Therefore only a call is evidence. The real entry stays in the list
//! meanwhile, and our file in the directory has an entry that attaches nothing and records each verb ([`DETECT`]).

use crate::{
    Change, Directory, Entry, Picked, TYPES, entry::DETECT, list::List, plan::Obstacle,
    single::Single,
};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// The configured position of our entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The network's list.
    #[default]
    List,
    /// The network's own directory.
    Directory,
    /// The network's own directory if the runtime is known to call its plugins, or else the list.
    Auto {
        /// Networks whose directories the runtime has read at ADD and at DEL.
        read: BTreeSet<String>,
    },
}

/// Name of our file in a network's directory. A runtime calls the plugins there in the order of their names.
const FILE: &str = "99-rdma-cni.conf";

/// Returns the path of our file for `network`, below the directory of the lists.
pub fn file_of(network: &str) -> String {
    format!("{network}/{FILE}")
}

/// Reports whether `file` is named like our file in a network's directory.
pub fn is_ours(file: &str) -> bool {
    file.rsplit_once('/').is_some_and(|(_, name)| name == FILE)
}

/// Our entry in a network's own directory.
#[derive(Clone, Debug, PartialEq)]
pub struct InDirectory {
    /// Path below the directory of the lists: `cbr0/99-rdma-cni.conf`.
    pub file: String,
    /// Fields of the entry.
    pub configuration: Map<String, Value>,
}

/// Returns our entries in the directory of the picked network, in the order of the calls. Returns none if the runtime
/// does not read the directory. Leaves out entries with `detect`.
pub fn in_directory(directory: &Directory, picked: &Picked) -> impl Iterator<Item = InDirectory> {
    let files = directory.plugins_of(&picked.network);
    let files = files.filter(|_| picked.reads_directory);
    files.filter_map(|file| {
        let single = Single::parse(file.text.as_deref().ok()?).ok()?;
        let detects = single.configuration().get(DETECT) == Some(&Value::Bool(true));
        let is_ours = TYPES.contains(&single.kind()) && !detects;
        is_ours.then(|| InDirectory {
            file: file.name.clone(),
            configuration: single.configuration().clone(),
        })
    })
}

/// The entries that a network needs.
pub(crate) enum Wanted {
    /// The entry in the list only.
    List,
    /// The entry in the list, and a detecting entry in the directory.
    Detection,
    /// The entry in the directory only.
    Directory,
}

impl Placement {
    /// Returns the entries for the list that the runtime uses.
    pub(crate) fn wanted(&self, picked: &Picked) -> Result<Wanted, Obstacle> {
        let network = &picked.network;
        Ok(match self {
            Self::List => Wanted::List,
            Self::Directory if picked.reads_directory => Wanted::Directory,
            Self::Directory => {
                let why = "the runtime does not call the plugins of the network's own directory \
                           (loadOnlyInlinedPlugins, or Multus calls it); set chain.placement to list or auto";
                return Err(obstacle(&picked.file, why));
            }
            Self::Auto { .. } if !picked.reads_directory => Wanted::List,
            Self::Auto { read } if read.contains(network) => Wanted::Directory,
            Self::Auto { .. } => Wanted::Detection,
        })
    }
}

/// Returns the change that writes `entry` to our file for the network, or that removes the file if there is no `entry`.
/// `placed` are the files that belong to this project.
pub(crate) fn put(
    directory: &Directory,
    picked: &Picked,
    entry: Option<&Entry>,
    placed: &BTreeSet<String>,
) -> Result<Option<Change>, Obstacle> {
    let file = file_of(&picked.network);
    let present = directory.file(&file);
    if present.is_some() && !placed.contains(&file) {
        return match entry {
            Some(_) => Err(obstacle(&file, "another program wrote it; remove it")),
            None => Ok(None),
        };
    }
    let Some(entry) = entry else {
        return Ok(placed.contains(&file).then_some(Change::Remove { file }));
    };
    let text = entry.text();
    let is_there = present.is_some_and(|it| it.text.as_ref() == Ok(&text));
    Ok((!is_there).then(|| Change::Write {
        file,
        text,
        like: picked.file.clone(),
    }))
}

/// Plans the move of the entry to the directory. The file is written before the list is changed, so that pods that
/// start in between get rails.
pub(crate) fn put_in_directory(
    directory: &Directory,
    picked: &Picked,
    (list, entry): (&List<'_>, &Entry),
    placed: &BTreeSet<String>,
) -> Result<Vec<Change>, Obstacle> {
    let refused = |why| Obstacle::Refused {
        file: picked.file.clone(),
        why,
    };
    list.check().map_err(refused)?;
    let in_list = match placed.contains(&picked.file) {
        true => list.without().map_err(refused)?,
        false => None,
    };
    let mut changes = vec![];
    changes.extend(put(directory, picked, Some(entry), placed)?);
    changes.extend(in_list.map(|text| Change::rewrite(&picked.file, text)));
    Ok(changes)
}

/// Returns changes that remove our files from the directories of networks that are no longer used. `placed` also lists
/// files that were never written.
pub(crate) fn stale(picked: &Picked, placed: &BTreeSet<String>) -> Vec<Change> {
    let used = (!picked.single).then(|| file_of(&picked.network));
    let ours = placed.iter().filter(|file| is_ours(file));
    let stale = ours.filter(|file| Some(*file) != used.as_ref());
    let remove = |file: &String| Change::Remove { file: file.clone() };
    stale.map(remove).collect()
}

fn obstacle(file: &str, why: &'static str) -> Obstacle {
    Obstacle::Directory {
        file: file.to_owned(),
        why,
    }
}
