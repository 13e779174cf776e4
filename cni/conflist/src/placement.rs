// SPDX-License-Identifier: Apache-2.0
//! Where our plugin's entry is: in the network's list, or in a file of ours in the network's own directory.
//!
//! The directory needs a runtime that calls what is in it at ADD **and** at DEL. What libcni keeps of a pod's
//! network (`cacheAdd()`, `libcni/api.go`) does not tell: it is the text of the list, whatever was appended to
//! that. For the same reason CRI-O does not call the directory's plugins at DEL: it makes the network from what
//! was kept (`loadNetworkFromCache()`, ocicni 0.4.3). So the evidence is a call: a file of ours in the directory
//! has an entry that attaches nothing and notes each verb ([`DETECT`]), while the real entry is in the list.

use crate::{
    Change, Directory, Entry, Picked, TYPES,
    entry::DETECT,
    list::List,
    plan::{Obstacle, Placed},
    single::Single,
};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Where our plugin's entry is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// In the network's list.
    #[default]
    List,
    /// In the network's own directory.
    Directory,
    /// In the network's own directory where the runtime is known to call what is in it; else in the list.
    Auto {
        /// The networks whose directories it has read, at ADD and at DEL.
        read: BTreeSet<String>,
    },
}

/// The name of our file in a network's directory. The plugins there are called in the order of their names.
const FILE: &str = "99-rdma-cni.conf";

/// Our file for `network`, below the directory of the lists.
pub fn file_of(network: &str) -> String {
    format!("{network}/{FILE}")
}

/// Whether `file` has the name of ours in some network's directory.
pub fn is_ours(file: &str) -> bool {
    file.rsplit_once('/').is_some_and(|(_, name)| name == FILE)
}

/// Our plugin in a network's own directory.
#[derive(Clone, Debug, PartialEq)]
pub struct InDirectory {
    /// `cbr0/99-rdma-cni.conf`
    pub file: String,
    /// Its configuration.
    pub configuration: Map<String, Value>,
}

/// Our plugin, as often as it is called from the directory of the network that was picked: by a runtime that reads
/// it. In the order of the calls.
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

/// What is to be there.
pub(crate) enum Wanted {
    /// The entry in the list alone.
    List,
    /// The entry in the list, and one in the directory that finds out whether the runtime reads that.
    Detection,
    /// The entry in the directory alone.
    Directory,
}

impl Placement {
    /// What that means for the list that the runtime uses.
    pub(crate) fn wanted(&self, picked: &Picked) -> Result<Wanted, Obstacle> {
        let network = &picked.network;
        Ok(match self {
            Self::List => Wanted::List,
            Self::Directory if picked.reads_directory => Wanted::Directory,
            Self::Directory => {
                let why = "the plugins of the network's own directory are not called with it \
                           (loadOnlyInlinedPlugins, or Multus calls it); chain.placement has to be list or auto";
                return Err(obstacle(&picked.file, why));
            }
            Self::Auto { .. } if !picked.reads_directory => Wanted::List,
            Self::Auto { read } if read.contains(network) => Wanted::Directory,
            Self::Auto { .. } => Wanted::Detection,
        })
    }
}

/// What has to change for our file of the network to have `entry`; none: for there to be no file. `placed` are
/// the files that are ours.
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
            Some(_) => Err(obstacle(&file, "somebody else put it there; take it away")),
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

/// The entry in the directory alone: the file comes before the list is as it was, so that no pod has neither.
pub(crate) fn put_in_directory(
    directory: &Directory,
    picked: &Picked,
    (list, entry): (&List<'_>, &Entry),
    placed: &BTreeSet<String>,
) -> Result<(Placed, Vec<Change>), Obstacle> {
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
    changes.extend(in_list.map(|text| Change::Write {
        file: picked.file.clone(),
        text,
        like: picked.file.clone(),
    }));
    let placed = Placed {
        file: file_of(&picked.network),
        network: picked.network.clone(),
        by_others: false,
    };
    Ok((placed, changes))
}

/// Our files in the directories of networks that are not used any more, also those that were never written.
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
