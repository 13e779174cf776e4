// SPDX-License-Identifier: Apache-2.0
//! What the leases of an ADD are to say, on the disk before it has the lock.
//!
//! Each process has a file of its own, so that nobody makes a lease of what another one is writing.

use super::{Change, Disk, OWN, Owner, Store, StoreError, make, walk::names};
use std::{
    path::{Path, PathBuf},
    process,
};

/// A file that leases are made of.
#[derive(Debug)]
pub struct Draft {
    owner: Owner,
    path: PathBuf,
}

/// What the names of drafts end with.
const ENDING: &str = ".new";

impl Draft {
    /// Whose leases are made of it.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes it away. What was made of it is on the disk when this returns.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn settle<D: Disk>(&self, store: &Store<'_, D>) -> Result<(), StoreError> {
        store.remove(self.path.clone())?;
        make(store.disk, Change::Sync(store.attachments()))?;
        store.sync()
    }
}

/// Whose draft is called `name`, if it is one.
pub(super) fn owner_of(name: &str) -> Option<Owner> {
    let (owner, _process) = name.strip_suffix(ENDING)?.rsplit_once('.')?;
    Owner::of_file_name(owner)
}

impl<D: Disk> Store<'_, D> {
    /// Writes what leases of `owner` say, such that it is on the disk when this returns.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn draft(&self, owner: &Owner) -> Result<Draft, StoreError> {
        self.make_directories()?;
        let path = self.own(&format!("{}.{}{ENDING}", owner.file_name(), process::id()));
        // one that a killed process of this number has left
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

    /// Takes `draft` away, of which no lease was made. What cannot be taken away DEL does.
    pub fn discard(&self, draft: Draft) {
        if let Err(error) = self.remove(draft.path) {
            log::warn!("{error}");
        }
    }

    /// Takes away the drafts of those owners that `are_gone`, as killed processes have left some.
    ///
    /// # Errors
    /// The system refuses it.
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
    fn names_tell_the_owner() {
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
