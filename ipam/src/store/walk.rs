// SPDX-License-Identifier: Apache-2.0
//! Reads the whole directory of leases, for attachments without a complete note, for GC and STATUS.

use super::{
    AVOIDED, Change, Lease, Locked, OWN, Owner, POINTER, Store, StoreError, failed, is_within,
    make, note,
};
use cni_protocol::state_file;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::{Path, PathBuf},
};

/// Maximum number of notes about conflicts that one DEL with a conflict checks. Other processes wait for the lock
/// during the check.
const MARKS: usize = 64;

/// The content of a network's directory.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// Leases.
    pub leases: BTreeMap<IpAddr, Lease>,
    /// Files that neither host-local nor this plugin wrote.
    pub foreign: Vec<PathBuf>,
}

impl Contents {
    /// Returns a warning for each file that needs attention.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = self.foreign.iter().map(|path| warning(path)).collect();
        for (ip, lease) in &self.leases {
            match lease {
                Lease::Empty => warnings.push(format!(
                    "the lease of {ip} is empty, as a killed host-local leaves it: the address counts as in use \
                     until GC"
                )),
                Lease::Foreign => warnings.push(format!(
                    "the file {ip} is not a lease, so rdma-ipam keeps it, and the address counts as in use"
                )),
                Lease::Of(_) | Lease::OfContainer(_) => {}
            }
        }
        warnings
    }

    /// Returns the addresses of the leases for which `wanted` returns true.
    pub fn leased(&self, wanted: impl Fn(&Lease) -> bool) -> Vec<IpAddr> {
        let leases = self.leases.iter();
        let leases = leases.filter(|(_, lease)| wanted(lease));
        leases.map(|(ip, _)| *ip).collect()
    }
}

fn warning(path: &Path) -> String {
    format!("{path:?} is not a lease, so rdma-ipam keeps it: move it to another directory")
}

/// Returns true if `name` is the name of a file of host-local or of this plugin that is no lease.
fn is_known(name: &str) -> bool {
    name == "lock" || name == OWN || name.starts_with(POINTER)
}

impl Locked<'_> {
    /// Reads every lease.
    pub fn read(&self) -> Result<Contents, StoreError> {
        let mut contents = Contents::default();
        for name in names(&self.store.directory)? {
            match name.parse() {
                Ok(ip) => contents.leases.extend(self.lease(ip)?.map(|it| (ip, it))),
                Err(_) if is_known(&name) => {}
                Err(_) => contents.foreign.push(self.store.directory.join(name)),
            }
        }
        Ok(contents)
    }

    /// Returns all leases of `owner`, with or without a note, including leases that host-local wrote. If no lease names
    /// the interface, also returns leases that name only the container, as host-local does.
    pub fn leases_of(&self, owner: &Owner) -> Result<Vec<IpAddr>, StoreError> {
        let contents = self.read()?;
        for warning in contents.warnings() {
            log::warn!("{warning}");
        }
        let exact = contents.leased(|lease| *lease == Lease::Of(owner.clone()));
        Ok(match exact.is_empty() {
            true => contents.leased(|lease| lease.is_of(owner)),
            false => exact,
        })
    }

    /// Removes every lease for which `is_stale` returns true, and the notes and drafts of attachments whose leases are
    /// stale. Also removes unfinished files, and expired notes about conflicts and nodes. Continues after an error.
    /// Returns the addresses of the removed leases, and all errors. [`Store::sync_swept`] syncs the removals to disk.
    pub fn sweep(
        &self,
        contents: &Contents,
        is_stale: impl Fn(&Lease) -> bool,
    ) -> (Vec<IpAddr>, Vec<StoreError>) {
        let (mut swept, mut errors) = (vec![], vec![]);
        for (ip, lease) in &contents.leases {
            if is_stale(lease) {
                match self.remove(self.store.lease(*ip)) {
                    Ok(_) => swept.push(*ip),
                    Err(error) => errors.push(error),
                }
            }
        }
        let is_stale_note = |name: &str, _: &str| {
            Owner::of_file_name(name).is_some_and(|owner| is_stale(&Lease::Of(owner)))
        };
        let attachments = self.store.attachments();
        let names = names(&attachments);
        let forgotten = names.and_then(|names| self.forget(&attachments, names, is_stale_note));
        errors.extend(forgotten.err());
        errors.extend(self.forget_old_conflicts(None).err());
        errors.extend(self.forget_old_nodes().err());
        // earlier versions wrote lease.new
        for new in ["lease.new", "pointer.new"] {
            errors.extend(self.remove(self.store.own(new)).err());
        }
        let is_stale_draft = |owner: &Owner| is_stale(&Lease::Of(owner.clone()));
        errors.extend(self.store.forget_drafts(is_stale_draft).err());
        (swept, errors)
    }

    /// Removes expired notes about conflicts. With an address `beside`, checks only `MARKS` notes, in the order of
    /// their names, beginning at this address.
    pub fn forget_old_conflicts(&self, beside: Option<&IpAddr>) -> Result<(), StoreError> {
        let directory = self.store.conflicts();
        let all = names(&directory)?;
        let first = beside.map(IpAddr::to_string).unwrap_or_default();
        let (before, after): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| *it < first);
        let limit = beside.map_or(usize::MAX, |_| MARKS);
        let some = after.into_iter().chain(before).take(limit);
        self.forget(&directory, some, |_, seen| !is_within(seen, AVOIDED))
    }

    /// Removes the notes `names` in `directory` for which `old` returns true. The arguments of `old` are name and text
    /// of the note.
    pub(super) fn forget(
        &self,
        directory: &Path,
        names: impl IntoIterator<Item = String>,
        old: impl Fn(&str, &str) -> bool,
    ) -> Result<(), StoreError> {
        for name in names {
            let path = directory.join(&name);
            if note(&path)?.is_some_and(|text| old(&name, &text)) {
                self.remove(path)?;
            }
        }
        Ok(())
    }
}

impl Store<'_> {
    /// Syncs the directories of leases and notes, with the removals of all sweeps so far. Always syncs, because an
    /// earlier sweep may have been killed, or its sync may have failed. So even a GC that removes nothing takes some
    /// milliseconds longer after it has released the lock. Ignores a missing directory: host-local makes none for
    /// notes.
    pub fn sync_swept(&self) -> Vec<StoreError> {
        let directories = [self.attachments(), self.directory.clone()].into_iter();
        let directories = directories.filter(|it| it.try_exists().unwrap_or(true));
        let synced = directories.map(|directory| make(self.disk, Change::Sync(directory)));
        synced.filter_map(Result::err).collect()
    }

    /// Returns a warning for each file that neither host-local nor this plugin wrote. Reads only the names of the
    /// files.
    pub fn foreign(&self) -> Result<Vec<String>, StoreError> {
        let names = names(&self.directory)?.into_iter();
        let foreign = names.filter(|name| name.parse::<IpAddr>().is_err() && !is_known(name));
        Ok(foreign
            .map(|name| warning(&self.directory.join(name)))
            .collect())
    }
}

/// Returns the names in `directory`. The directory need not exist.
pub(super) fn names(directory: &Path) -> Result<BTreeSet<String>, StoreError> {
    state_file::names(directory).map_err(failed("read", directory))
}
