// SPDX-License-Identifier: Apache-2.0
//! Which records were written since a look at them, without reading them.

use crate::{
    record::Key,
    store::{Store, StoreError},
};
use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt};

/// All records, each as it was at one moment.
#[derive(Clone, Debug, Default)]
pub struct Versions(BTreeMap<Key, Version>);

/// A record is written anew as another file. Its number can be that of a file that has gone, and then the time tells
/// them apart: between a record and the next one that has its number are the changes of a DEL and of an ADD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    inode: u64,
    seconds: i64,
    nanoseconds: i64,
}

impl Versions {
    /// The records that were written since those `before`, or are new.
    pub fn since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a Key> {
        let is_new = |(key, version): &(&Key, &Version)| before.0.get(*key) != Some(*version);
        self.0.iter().filter(is_new).map(|(key, _)| key)
    }
}

impl Store {
    /// The versions of all records.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn versions(&self) -> Result<Versions, StoreError> {
        let keys = self.keys(None)?.into_iter();
        let versions = keys.filter_map(|key| {
            // one that is gone by now is none
            let metadata = fs::metadata(self.record_path(&key)).ok()?;
            let version = Version {
                inode: metadata.ino(),
                seconds: metadata.ctime(),
                nanoseconds: metadata.ctime_nsec(),
            };
            Some((key, version))
        });
        Ok(Versions(versions.collect()))
    }
}
