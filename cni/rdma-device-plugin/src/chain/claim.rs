// SPDX-License-Identifier: Apache-2.0
//! Whose configuration of our plugin is in the lists.
//!
//! While a node is updated, the init container of the new pod puts in what the new configuration says, and the
//! daemon before still leads. Its own would take the place of that one until the new daemon leads; and
//! where the version before comes back, its binaries may refuse the entry of the newer one. So whoever begins
//! to lead puts in its own, and then keeps what was put in last, by whomever.

use super::record::Record;
use conflist::Entry;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What one reconciler has to keep.
#[derive(Clone, Debug, Default)]
pub struct Claim(Option<Last>);

/// Its last turn.
#[derive(Clone, Debug)]
struct Last {
    entry: Entry,
    /// What the record said then: what was put in last, by the list's file.
    newest: BTreeMap<String, Map<String, Value>>,
}

impl Claim {
    /// What is to be in the lists: `own` at first, then what somebody else has put in since the last turn.
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

    /// A turn put `entry` in, and left `record`.
    pub(super) fn made(&mut self, entry: Entry, record: &Record) {
        let newest = newest(record).map(|(file, entry)| (file.clone(), entry.clone()));
        self.0 = Some(Last {
            entry,
            newest: newest.collect(),
        });
    }

    /// Whether somebody else's is kept, and not `own`.
    pub(super) fn is_anothers(&self, own: &Entry) -> bool {
        self.0.as_ref().is_some_and(|last| last.entry != *own)
    }
}

fn newest(record: &Record) -> impl Iterator<Item = (&String, &Map<String, Value>)> {
    let lists = record.lists.iter();
    lists.filter_map(|(file, placing)| Some((file, placing.entries.first()?)))
}
