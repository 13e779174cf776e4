// SPDX-License-Identifier: Apache-2.0
//! Leases on disk, in host-local's directory, so that a node can switch over and back.
//!
//! ```text
//! <dataDir>/<network>/lock                            flock, host-local's too
//!                     <address>                       a lease, as host-local writes it
//!                     last_reserved_ip.<pointer>      the round robin's last address
//!                     rdma-ipam/attachments/<container>@<ifname>   → "<address>,<address>"
//!                     rdma-ipam/conflicts/<address>                → "<seconds since 1970>"
//!                     rdma-ipam/<container>@<ifname>.<process>.new what leases are to say, while an ADD is under way
//!                     rdma-ipam/pointer.new                        while being written
//! ```
//! host-local walks all of it, reads every file, and takes one for a lease whose content is a
//! container's id (and an interface's name). What stays under `rdma-ipam/` are therefore
//! *notes*: symbolic links that lead nowhere, which host-local cannot read and leaves alone.
//! Making a link is one atomic change, so that a note is never seen half-written. Only
//! a [`Draft`] looks like a lease; host-local removes it with the attachment.
//!
//! # What a kill, or a loss of power, leaves
//!
//! Nobody has the lock while the disk is waited for: many pods that come at once wait together, for what the
//! filesystem writes for all of them. ADD makes these changes in this order:
//!
//! 1. before it has the lock, a [`Draft`] with the leases' content, and fsync;
//! 2. under the lock, the attachment's note, with all addresses it is about to get;
//! 3. for each address a hard link of the draft: a lease that is seen is whole, and making
//!    it fails if the address is held, also by somebody who does not take the lock;
//! 4. when the lock is free, the draft goes; fsync of the notes' directory and of the leases'; only then is the
//!    answer given.
//!
//! Stopped before 3: a draft, or a note without leases. Stopped within 3: a note, and leases for a part of
//! its addresses. Either way the note and the leases differ, and DEL, or the same attachment's
//! next ADD, walks the directory and takes away what there is. Stopped after 3: the attachment holds
//! all its addresses; whether the runtime got the answer cannot be told from here, so the next
//! ADD is refused and the runtime has to call DEL, as the specification has it after a failed
//! ADD. A note may tell an address that meanwhile another attachment got: a lease is only
//! ever taken away if its content names the attachment.
//!
//! DEL removes the leases and the note, and syncs the leases' directory when the lock is free. Stopped in between,
//! it is repeated. The note's removal is not synced: one that comes back after a loss of power
//! tells of leases that are not there, which is harmless, and goes with the next ADD, DEL or GC.
//! DEL also removes what drafts of the attachment a killed ADD has left.
//!
//! Without any note (a lease of host-local's, or a note lost with the power before step 4
//! ended), and with one that differs, DEL walks the directory. A note that agrees with its leases is believed: a lease
//! that host-local gave the same attachment before, without a DEL in between, is found by the next DEL, which has no
//! note any more, or by GC. So no lease is lost, whatever is. GC looks at leases, not at notes. It syncs both
//! directories when the lock is free, also if it has found nothing: what a GC that was stopped has taken away is not on
//! the disk yet.
//!
//! The round robin's pointer is renamed into place, not synced: an old one costs a look at an
//! address that is held.

mod change;
mod draft;
mod lease;
pub mod note;
mod walk;

pub use change::{Change, Deferred, Disk, RealDisk};
pub use draft::Draft;
pub use lease::{Lease, Owner};
pub use walk::Contents;

use cni_protocol::{
    lock::{self, Held, Patience},
    room, state_file,
};
use std::{
    collections::BTreeSet,
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// How long an address that another machine was found to use is avoided, as long as there are
/// others.
pub const AVOIDED: Duration = Duration::from_secs(60 * 60);

/// How long it is not given at all.
pub const REFUSED: Duration = Duration::from_secs(60);

/// The leases of one network.
#[derive(Clone, Debug)]
pub struct Store<'a, D> {
    disk: &'a D,
    directory: PathBuf,
    patience: Patience,
}

/// The leases while nobody else can change them, host-local included.
#[derive(Debug)]
pub struct Locked<'a, D> {
    store: &'a Store<'a, D>,
    _held: Held,
}

/// The data directory could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path:?}: {source}{}", if self.is_held() { "" } else { REMEDY })]
pub struct StoreError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// What an attachment has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holding {
    /// No note; host-local may have given it something.
    Nothing,
    /// All addresses of its note.
    Complete(Vec<IpAddr>),
    /// Not all addresses of its note: its ADD or DEL was killed, or host-local did its DEL.
    Partial,
}

const REMEDY: &str = "; ipam.dataDir must be a directory that can be written";

impl StoreError {
    /// Whether a lock was held by somebody else for too long: it may be free the next time.
    pub fn is_held(&self) -> bool {
        self.source.kind() == io::ErrorKind::TimedOut
    }
}

pub(crate) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError {
        action,
        path,
        source,
    }
}

/// Makes `change`, and tells what failed.
pub(crate) fn make(disk: &impl Disk, change: Change) -> Result<(), StoreError> {
    disk.make(&change)
        .map_err(|source| failed(change.verb(), change.path())(source))
}

impl<'a, D: Disk> Store<'a, D> {
    /// The leases of `network` under `data_dir`, which need not be there yet. Their lock is waited for with `patience`.
    pub fn new(disk: &'a D, data_dir: &Path, network: &str, patience: Patience) -> Self {
        Self {
            disk,
            directory: data_dir.join(network),
            patience,
        }
    }

    /// Waits for the network's lock; makes its directories.
    pub fn lock(&'a self) -> Result<Locked<'a, D>, StoreError> {
        self.make_directories()?;
        self.lock_file()
    }

    fn make_directories(&self) -> Result<(), StoreError> {
        for directory in [self.attachments(), self.conflicts()] {
            if !directory.is_dir() {
                make(self.disk, Change::MakeDirectory(directory))?;
                // so that what is synced in it later is not lost with it
                for above in self.directory.ancestors().take(2) {
                    make(self.disk, Change::Sync(above.to_owned()))?;
                }
            }
        }
        Ok(())
    }

    /// Waits for the network's lock, if there is anything of the network.
    pub fn lock_existing(&'a self) -> Result<Option<Locked<'a, D>>, StoreError> {
        match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &self.directory)(error)),
            Ok(_) => self.lock().map(Some),
        }
    }

    fn lock_file(&'a self) -> Result<Locked<'a, D>, StoreError> {
        let path = self.directory.join("lock");
        let file = lock::open(&path).map_err(failed("open", &path))?;
        let held = self.patience.wait(file).map_err(failed("lock", &path))?;
        let locked = Locked {
            store: self,
            _held: held,
        };
        locked.sweep_unfinished();
        Ok(locked)
    }

    /// Whether leases can be written, for STATUS, which writes none.
    pub fn probe(&self) -> Result<(), StoreError> {
        room::check(&self.directory).map_err(failed("write", &self.directory))
    }

    /// All addresses that are leased, and those that another machine was found to use no longer
    /// ago than `time`.
    pub fn taken(&self, time: Duration) -> Result<BTreeSet<IpAddr>, StoreError> {
        let leases = walk::names(&self.directory)?;
        let mut taken: BTreeSet<IpAddr> = leases.iter().filter_map(|it| it.parse().ok()).collect();
        let directory = self.conflicts();
        for name in walk::names(&directory)? {
            if note(&directory.join(&name))?.is_some_and(|seen| is_within(&seen, time)) {
                taken.extend(name.parse::<IpAddr>());
            }
        }
        Ok(taken)
    }

    /// What was given and taken away is on the disk when this returns.
    pub fn sync(&self) -> Result<(), StoreError> {
        make(self.disk, Change::Sync(self.directory.clone()))
    }

    /// Removes `path`; it is no error if it is gone. Tells whether it was there.
    fn remove(&self, path: PathBuf) -> Result<bool, StoreError> {
        let change = Change::Remove(path);
        match self.disk.make(&change) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed(change.verb(), change.path())(error)),
        }
    }

    fn own(&self, name: &str) -> PathBuf {
        self.directory.join(OWN).join(name)
    }

    fn attachments(&self) -> PathBuf {
        self.own("attachments")
    }

    fn conflicts(&self) -> PathBuf {
        self.own("conflicts")
    }

    fn note_of(&self, owner: &Owner) -> PathBuf {
        self.attachments().join(owner.file_name())
    }

    fn lease(&self, ip: IpAddr) -> PathBuf {
        self.directory.join(ip.to_string())
    }

    fn pointer(&self, pointer: &str) -> PathBuf {
        self.directory.join(format!("{POINTER}{pointer}"))
    }
}

/// The sub-directory that is not host-local's.
const OWN: &str = "rdma-ipam";

/// A pointer while it is written, in [`OWN`].
const NEW_POINTER: &str = "pointer.new";

/// What a version without drafts wrote leases in there.
const NEW_LEASE: &str = "lease.new";

/// What the pointers' files begin with; host-local has one for each range set.
const POINTER: &str = "last_reserved_ip.";

impl<D: Disk> Locked<'_, D> {
    /// The leases, for a look.
    pub fn store(&self) -> &Store<'_, D> {
        self.store
    }

    fn make(&self, change: Change) -> Result<(), StoreError> {
        make(self.store.disk, change)
    }

    fn remove(&self, path: PathBuf) -> Result<bool, StoreError> {
        self.store.remove(path)
    }

    /// Takes away what was being written when its writer was killed, or could not go on. What stays harms nobody, and
    /// is tried again.
    fn sweep_unfinished(&self) {
        for path in [NEW_LEASE, NEW_POINTER].map(|name| self.store.own(name)) {
            if fs::symlink_metadata(&path).is_ok()
                && let Err(error) = self.remove(path)
            {
                log::warn!("{error}");
            }
        }
    }

    /// Makes `change`, which makes the new file `path`, of which a killed one may be left.
    fn make_anew(&self, path: &Path, change: Change) -> Result<(), StoreError> {
        self.remove(path.to_owned())?;
        self.make(change)
    }

    /// The addresses that the note of `owner` tells. None: there is none, or it makes no sense.
    pub fn noted(&self, owner: &Owner) -> Result<Option<Vec<IpAddr>>, StoreError> {
        let text = note(&self.store.note_of(owner))?;
        Ok(text.and_then(|text| note::addresses(&text)))
    }

    /// What `owner` has, by its note.
    pub fn holding(&self, owner: &Owner) -> Result<Holding, StoreError> {
        let Some(told) = self.noted(owner)? else {
            return Ok(match note(&self.store.note_of(owner))? {
                None => Holding::Nothing,
                Some(_) => Holding::Partial,
            });
        };
        for ip in &told {
            if !self.lease(*ip)?.is_some_and(|lease| lease.is_of(owner)) {
                return Ok(Holding::Partial);
            }
        }
        Ok(Holding::Complete(told))
    }

    /// The lease of `ip`.
    pub fn lease(&self, ip: IpAddr) -> Result<Option<Lease>, StoreError> {
        let path = self.store.lease(ip);
        match state_file::read(&path) {
            Ok(content) => Ok(Some(Lease::parse(&content))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if state_file::is_odd(&error) => Ok(Some(Lease::Foreign)),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    /// Gives all of `ips` to the owner of `draft`, who has none. After an error it still has none. What is given is on
    /// the disk when [`Draft::settle`] returns.
    pub fn reserve(&self, draft: &Draft, ips: &[IpAddr]) -> Result<(), StoreError> {
        let reserved = self.try_reserve(draft, ips);
        if reserved.is_err()
            && let Err(error) = self.release(draft.owner(), ips)
        {
            log::error!("cannot undo what was begun, DEL does: {error}");
        }
        reserved
    }

    fn try_reserve(&self, draft: &Draft, ips: &[IpAddr]) -> Result<(), StoreError> {
        self.make(Change::Note {
            path: self.store.note_of(draft.owner()),
            text: note::text_of(ips),
        })?;
        for ip in ips {
            self.make(Change::Link {
                from: draft.path().to_owned(),
                to: self.store.lease(*ip),
            })?;
        }
        Ok(())
    }

    /// Takes those of `ips` that are `owner`'s away from it, and its note. Tells them: they are free on the disk, too,
    /// after [`Store::sync`].
    pub fn release(&self, owner: &Owner, ips: &[IpAddr]) -> Result<Vec<IpAddr>, StoreError> {
        let mut released = vec![];
        for ip in ips {
            if self.lease(*ip)?.is_some_and(|lease| lease.is_of(owner)) {
                self.remove(self.store.lease(*ip))?;
                released.push(*ip);
            }
        }
        self.remove(self.store.note_of(owner))?;
        Ok(released)
    }

    /// Where the round robin `pointer` got to.
    pub fn last(&self, pointer: &str) -> Option<IpAddr> {
        let text = state_file::read(&self.store.pointer(pointer)).ok()?;
        str::from_utf8(&text).ok()?.trim().parse().ok()
    }

    /// The round robin `pointer` got to `ip`.
    pub fn set_last(&self, pointer: &str, ip: IpAddr) -> Result<(), StoreError> {
        let new = self.store.own(NEW_POINTER);
        let write = Change::Write {
            path: new.clone(),
            content: ip.to_string().into_bytes(),
            mode: 0o644,
            durable: false,
        };
        let rename = Change::Rename {
            from: new.clone(),
            to: self.store.pointer(pointer),
        };
        let set = self.make_anew(&new, write).and_then(|()| self.make(rename));
        if set.is_err() {
            self.sweep_unfinished();
        }
        set
    }

    /// Another machine uses `ip`: it is avoided for [`AVOIDED`] from now on.
    pub fn avoid(&self, ip: IpAddr) -> Result<(), StoreError> {
        let path = self.store.conflicts().join(ip.to_string());
        let note = Change::Note {
            path: path.clone(),
            text: seconds().to_string(),
        };
        self.make_anew(&path, note)
    }
}

impl<D: Disk> Locked<'_, D> {
    /// Whether there is a lease of `ip`, whosever it is.
    pub fn is_held(&self, ip: IpAddr) -> Result<bool, StoreError> {
        let path = self.store.lease(ip);
        match fs::symlink_metadata(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    /// Whether another machine was found to use `ip`, no longer ago than `time`.
    pub fn is_avoided(&self, ip: IpAddr, time: Duration) -> Result<bool, StoreError> {
        let conflict = note(&self.store.conflicts().join(ip.to_string()))?;
        Ok(conflict.is_some_and(|seen| is_within(&seen, time)))
    }
}

/// What the note at `path` says.
fn note(path: &Path) -> Result<Option<String>, StoreError> {
    match fs::read_link(path) {
        Ok(text) => Ok(Some(text.to_string_lossy().into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // EINVAL: it is no link, so it is none of ours
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(Some(String::new())),
        Err(error) => Err(failed("read", path)(error)),
    }
}

/// Whether a conflict that was seen at `seen` is no older than `time`.
fn is_within(seen: &str, time: Duration) -> bool {
    note::is_within(seen, seconds(), time)
}

/// Seconds since 1970.
fn seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}
