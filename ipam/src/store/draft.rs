// SPDX-License-Identifier: Apache-2.0
//! The content of an ADD's leases. ADD writes the content to disk before it takes the lock.
//!
//! Each process has its own file, so no process links to a file that another process is still writing.

use super::{Change, OWN, Owner, Store, StoreError, make, walk::names};
use std::{
    path::{Path, PathBuf},
    process,
};

/// The file to which the leases are hard links.
#[derive(Debug)]
pub struct Draft {
    owner: Owner,
    path: PathBuf,
}

/// Suffix of the drafts' names.
const ENDING: &str = ".new";

impl Draft {
    /// Returns the owner of the leases.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the draft, and syncs the directories of the attachments' notes ([`super`]) and of the leases.
    ///
    /// # Errors
    /// The system call fails.
    pub fn settle(&self, store: &Store<'_>) -> Result<(), StoreError> {
        store.remove(self.path.clone())?;
        make(store.disk, Change::Sync(store.attachments()))?;
        store.sync()
    }
}

/// Returns the owner of the draft `name`. Returns `None` if `name` is not the name of a draft.
pub(super) fn owner_of(name: &str) -> Option<Owner> {
    let (owner, _process) = name.strip_suffix(ENDING)?.rsplit_once('.')?;
    Owner::of_file_name(owner)
}

impl Store<'_> {
    /// Writes and syncs the content of leases of `owner`.
    ///
    /// # Errors
    /// The system call fails.
    pub fn draft(&self, owner: &Owner) -> Result<Draft, StoreError> {
        self.make_directories()?;
        let path = self.own(&format!("{}.{}{ENDING}", owner.file_name(), process::id()));
        // a killed process with the same process id may have left a draft
        self.remove(path.clone())?;
        let draft = Draft {
            owner: owner.clone(),
            path: path.clone(),
        };
        let content = owner.content().into_bytes();
        let written = make(
            self.disk,
            Change::Write {
                path,
                content,
                mode: 0o644,
                durable: true,
            },
        );
        match written {
            Ok(()) => Ok(draft),
            Err(error) => {
                self.discard(draft);
                Err(error)
            }
        }
    }

    /// Removes `draft`, to which no lease is linked. Only logs a failure, because DEL removes the file later.
    pub fn discard(&self, draft: Draft) {
        if let Err(error) = self.remove(draft.path) {
            log::warn!("{error}; DEL removes the unfinished lease");
        }
    }

    /// Removes the drafts of owners for which `are_gone` returns true. A killed process leaves its draft.
    ///
    /// # Errors
    /// The system call fails.
    pub fn forget_drafts(&self, are_gone: impl Fn(&Owner) -> bool) -> Result<(), StoreError> {
        let directory = self.directory.join(OWN);
        for name in names(&directory)? {
            if owner_of(&name).is_some_and(|owner| are_gone(&owner)) {
                self.remove(directory.join(name))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_identify_the_owner() {
        let owner = |interface: &str| Owner {
            container: "a".into(),
            interface: interface.into(),
        };
        for interface in ["eth0", "eth0.5", "x.new"] {
            let name = format!("{}.4711.new", owner(interface).file_name());
            assert_eq!(owner_of(&name), Some(owner(interface)), "{name}");
        }
        for other in ["attachments", "conflicts", "pointer.new", "lease.new"] {
            assert_eq!(owner_of(other), None, "{other}");
        }
    }
}
