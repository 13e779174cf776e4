// SPDX-License-Identifier: Apache-2.0
//! Place of our entry: the network's list, or our file in the network's own directory.
//!
//! The network's own directory works only with a runtime that calls the directory's plugins at ADD **and** at DEL.
//! libcni's cache of a pod's network (`cacheAdd()`, `libcni/api.go`) contains the text of the list without the appended
//! plugins. So the cache does not show whether the runtime calls the appended plugins. CRI-O does not call them at DEL,
//! because it loads the network from this cache (`loadNetworkFromCache()`, ocicni 0.4.3). Therefore only recorded calls
//! are evidence. Without evidence, the real entry stays in the list. Our file in the directory then has an entry that
//! attaches nothing and records calls of ADD and DEL ([`DETECT`]).
//!
//! If a list has no `plugins`, a runtime that accepts the list calls the directory's plugins at ADD. containerd also
//! calls them at DEL: with containerd, the real entry is in the directory without evidence, for any configured place.
//! With another runtime, only [`Placement::Directory`] applies to the list ([`Refused::Bare`]).

use crate::{
    Change, Directory, Entry, Picked, Runtime, TYPES,
    change::{Obstacle, refused},
    entry::DETECT,
    list::{List, Refused},
    single::Single,
};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Files to which this project has added its entry. The value has the list's plugins of type [`TYPE`](crate::TYPE)
/// that belong to this project. It is empty for a list without our entry, and for a file in a network's own directory.
pub type Placed = BTreeMap<String, Vec<Map<String, Value>>>;

/// Returns this project's entries in `file`.
pub(crate) fn entries_in<'a>(placed: &'a Placed, file: &str) -> &'a [Map<String, Value>] {
    placed.get(file).map_or(&[], Vec::as_slice)
}

/// Configured place of our entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Our entry is in the network's list.
    #[default]
    List,
    /// Our entry is in the network's own directory.
    Directory,
    /// Our entry is in the network's own directory if the runtime is known to call the directory's plugins. Otherwise
    /// it is in the list.
    Auto {
        /// Networks whose own directories the runtime has read at ADD and at DEL.
        read: BTreeSet<String>,
    },
}

/// Name of our file in a network's own directory. A runtime calls the directory's plugins in the order of the file
/// names.
const FILE: &str = "99-rdma-cni.conf";

/// Returns the path of our file for `network`, below the directory of the lists.
pub fn file_of(network: &str) -> String {
    format!("{network}/{FILE}")
}

/// Returns true if `file` has the name of our file in a network's own directory.
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

/// Returns our entries in the own directory of the picked network, in the order of the calls. Returns none if the
/// runtime does not read the directory. Omits entries with `detect`.
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

/// Returns the types of the other plugins in the own directory of the picked network, in the order of the calls.
pub fn others(directory: &Directory, picked: &Picked) -> Vec<String> {
    let files = directory.plugins_of(&picked.network);
    let texts = files.filter_map(|file| file.text.as_deref().ok());
    let kinds = texts.filter_map(|text| Some(Single::parse(text).ok()?.kind().to_owned()));
    kinds.filter(|it| !TYPES.contains(&it.as_str())).collect()
}

/// The entries that a network should have.
pub(crate) enum Wanted {
    /// The entry is only in the list.
    List,
    /// The entry is in the list, and a detecting entry is in the directory.
    Detection,
    /// The entry is only in the directory.
    Directory,
}

impl Placement {
    /// Returns the entries that the network of `picked`, the list that the runtime uses, should have.
    pub(crate) fn wanted(&self, picked: &Picked, runtime: &Runtime) -> Result<Wanted, Obstacle> {
        let network = &picked.network;
        Ok(match self {
            // a runtime that accepts such a list calls the directory's plugins at ADD, and containerd also at DEL
            _ if picked.types.is_empty() && *runtime == Runtime::Containerd => Wanted::Directory,
            Self::List => Wanted::List,
            Self::Directory if picked.reads_directory => Wanted::Directory,
            Self::Directory => {
                let why = "the runtime does not call the plugins of the network's own directory \
                           (loadOnlyInlinedPlugins is true, or Multus calls the network); set \
                           chain.placement to list or auto";
                return Err(refused(&picked.file, Refused::Directory(why)));
            }
            Self::Auto { .. } if !picked.reads_directory => Wanted::List,
            Self::Auto { read } if read.contains(network) => Wanted::Directory,
            Self::Auto { .. } => Wanted::Detection,
        })
    }
}

/// Returns the change that writes `entry` to our file for the network. Without an `entry`, returns the change that
/// removes our file. Returns `None` if no change is needed. `placed` are the files that belong to this project.
pub(crate) fn put(
    directory: &Directory,
    picked: &Picked,
    entry: Option<&Entry>,
    placed: &Placed,
) -> Result<Option<Change>, Obstacle> {
    let file = file_of(&picked.network);
    let present = directory.file(&file);
    if present.is_some() && !placed.contains_key(&file) {
        return match entry {
            Some(_) => {
                let why = "another program wrote this file; remove the file";
                Err(refused(&file, Refused::Directory(why)))
            }
            None => Ok(None),
        };
    }
    let Some(entry) = entry else {
        return Ok(placed
            .contains_key(&file)
            .then_some(Change::Remove { file }));
    };
    let text = entry.text();
    let is_there = present.is_some_and(|it| it.text.as_ref() == Ok(&text));
    Ok((!is_there).then(|| Change::Write {
        file,
        text,
        like: picked.file.clone(),
    }))
}

/// Plans the move of the entry from the list to the directory. The file is written before the list is changed, so a pod
/// that starts between the two changes still gets rails.
pub(crate) fn put_in_directory(
    directory: &Directory,
    picked: &Picked,
    list: &List<'_>,
    entry: &Entry,
    placed: &Placed,
) -> Result<Vec<Change>, Obstacle> {
    let refused = |why| refused(&picked.file, why);
    list.check().map_err(refused)?;
    let in_list = list
        .without_entries(entries_in(placed, &picked.file))
        .map_err(refused)?;
    let mut changes = vec![];
    changes.extend(put(directory, picked, Some(entry), placed)?);
    changes.extend(in_list.map(|text| Change::rewrite(&picked.file, text)));
    Ok(changes)
}

/// Returns the changes that remove our files from the own directories of networks that are no longer used. `placed` may
/// also list files that were never written.
pub(crate) fn stale(picked: &Picked, placed: &Placed) -> Vec<Change> {
    let used = (!picked.single).then(|| file_of(&picked.network));
    let ours = placed.keys().filter(|file| is_ours(file));
    let stale = ours.filter(|file| Some(*file) != used.as_ref());
    let remove = |file: &String| Change::Remove { file: file.clone() };
    stale.map(remove).collect()
}
