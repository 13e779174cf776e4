// SPDX-License-Identifier: Apache-2.0
//! Selects the entry of `rdma-cni` that the daemon writes to the lists. During an update, the init container of the new
//! pod writes a new entry while the old daemon is still the leader. The old daemon must not replace the new entry.
//!
//! A new leader first writes the entry of its own configuration: after a downgrade, the older binaries may refuse the
//! entry that a newer version wrote. From then on the leader keeps the entry that another process wrote last.

use super::record::Record;
use conflist::Entry;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Entry that one reconciler keeps in the lists.
#[derive(Clone, Debug, Default)]
pub struct KeptEntry(Option<Last>);

/// Result of the reconciler's last turn.
#[derive(Clone, Debug)]
struct Last {
    entry: Entry,
    /// Newest recorded entry of each list after that turn, by the list's file name.
    newest: BTreeMap<String, Map<String, Value>>,
}

impl KeptEntry {
    /// Returns the entry for the lists. The first turn returns `own`. Later turns return the entry that another process
    /// has written since the last turn, or otherwise the entry of the last turn.
    pub(super) fn entry(&self, own: &Entry, record: &Record) -> Entry {
        let Some(last) = &self.0 else {
            return own.clone();
        };
        let others = newest(record).find(|(file, entry)| last.newest.get(*file) != Some(entry));
        match others {
            Some((_, entry)) => Entry::as_it_is(entry.clone()),
            None => last.entry.clone(),
        }
    }

    /// Stores the `entry` of a turn, and the newest entries of `record` after this turn.
    pub(super) fn made(&mut self, entry: Entry, record: &Record) {
        let newest = newest(record).map(|(file, entry)| (file.clone(), entry.clone()));
        self.0 = Some(Last {
            entry,
            newest: newest.collect(),
        });
    }

    /// Returns true if the reconciler keeps another process's entry in the lists instead of `own`.
    pub(super) fn is_anothers(&self, own: &Entry) -> bool {
        self.0.as_ref().is_some_and(|last| last.entry != *own)
    }
}

fn newest(record: &Record) -> impl Iterator<Item = (&String, &Map<String, Value>)> {
    let lists = record.lists.iter();
    lists.filter_map(|(file, placing)| Some((file, placing.entries.first()?)))
}
