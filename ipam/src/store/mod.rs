// SPDX-License-Identifier: Apache-2.0
//! Leases on disk, in host-local's directory, so that a node can switch to this plugin and back.
//!
//! ```text
//! <dataDir>/<network>/lock                            flock, host-local's too
//!                     <address>                       a lease, as host-local writes it
//!                     last_reserved_ip.<pointer>      the round robin's last address
//!                     rdma-ipam/attachments/<container>@<ifname>   → "<address>,<address>"
//!                     rdma-ipam/conflicts/<address>                → "<seconds since 1970>"
//!                     rdma-ipam/nodes/<address>                    → "<seconds since 1970>"
//!                     rdma-ipam/<container>@<ifname>.<process>.new   content of the leases, during an ADD
//!                     rdma-ipam/pointer.new                        the pointer, while it is written
//! ```
//! host-local reads every file below the directory. It treats a file as a lease if the content is a container's id (and
//! an interface's name). So the files under `rdma-ipam/` are *notes*: symbolic links without a real target. host-local
//! cannot read notes, and ignores them. Making a link is one atomic change, so no note is ever incomplete. Only a
//! [`Draft`] looks like a lease. host-local removes a draft with its attachment.
//!
//! # State after a kill or a power loss
//!
//! No process syncs the disk while it has the lock, so many pods that start at once share one write of the file system.
//! ADD makes these changes in this order:
//!
//! 1. before the lock: a [`Draft`] with the leases' content, and fsync;
//! 2. under the lock: the attachment's note, with all addresses of the ADD;
//! 3. for each address, a hard link to the draft. So an existing lease is always complete. Making the link fails if the
//!    address is leased, even by a process that does not take the lock;
//! 4. after the lock: removal of the draft, and fsync of both directories, for notes and leases; then the result.
//!
//! A kill before step 3 leaves a draft, and perhaps a note without leases. A kill during step 3 leaves a note, and
//! leases for a part of its addresses. DEL, or the same attachment's next ADD, finds that note and leases differ, walks
//! the directory, and removes the leases. After step 3, the attachment has all its addresses. The plugin cannot know
//! whether the runtime got the result. So the plugin refuses the next ADD, and the runtime has to call DEL, as the
//! specification requires after a failed ADD. A note may contain an address that another attachment has leased
//! meanwhile. So a lease is removed only if its content names the attachment.
//!
//! DEL removes the leases and the note. After it has released the lock, it syncs the leases' directory. The runtime
//! repeats a killed DEL. DEL does not sync the removal of the note. A power loss can restore the note, which then names
//! leases that do not exist. Such a note is harmless, and the next ADD, DEL or GC removes it. DEL also removes drafts
//! of a killed ADD of the attachment.
//!
//! DEL walks the directory if there is no note, or if note and leases differ. The note is missing if host-local made
//! the lease, or if the power failed before the end of step 4. If the note agrees with its leases, DEL does not walk
//! the directory. host-local may have leased another address to the same attachment before, without a DEL afterwards.
//! The next DEL removes this lease because it finds no note, or GC removes it. So every lease is removed at some time.
//! GC uses leases, not notes. After it has released the lock, it always syncs both directories that exist, because
//! removals of an earlier killed GC may not be on disk yet.
//!
//! ADD renames the round robin's pointer into place, and does not sync it. After a power loss the pointer may be old:
//! ADD then only checks some leased addresses first.

mod change;
mod draft;
mod lease;
mod nodes;
pub mod note;
mod reserve;
mod walk;

pub use change::{Change, Deferred, Disk, RealDisk};
pub use draft::Draft;
pub use lease::{Lease, Owner};
pub use nodes::REMEMBERED;
pub use reserve::ReserveError;
pub use walk::Contents;

use cni_protocol::{
    lock::{self, Held, LockDeadline},
    room, state_file,
};
use std::{
    collections::BTreeSet,
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Time after a conflict in which the address is assigned only if no other address is free.
pub const AVOIDED: Duration = Duration::from_secs(60 * 60);

/// Time after a conflict in which the address is never assigned.
pub const REFUSED: Duration = Duration::from_secs(60);

/// The leases of one network.
#[derive(Clone, Debug)]
pub struct Store<'a> {
    disk: &'a dyn Disk,
    directory: PathBuf,
    lock_deadline: LockDeadline,
}

/// The leases of one network, while this process has the network's lock. host-local takes the same lock.
#[derive(Debug)]
pub struct Locked<'a> {
    store: &'a Store<'a>,
    _held: Held,
}

/// An error while reading or writing the data directory.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path:?}: {source}{}", if self.is_held() { "" } else { REMEDY })]
pub struct StoreError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The addresses that an attachment has according to its note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holding {
    /// The attachment has no note. host-local may have assigned addresses.
    Nothing,
    /// The attachment has leases for all addresses of its note.
    Complete(Vec<IpAddr>),
    /// The attachment's note is malformed, or has an address without a lease of this attachment: its ADD or DEL was
    /// killed, or host-local ran its DEL.
    Partial,
}

const REMEDY: &str = "; ipam.dataDir must be a directory that can be written";

impl StoreError {
    /// Returns true if another process held a lock until the time limit. A later try may succeed.
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

/// Converts the error `NotFound` to `None`.
pub(crate) fn if_exists<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Makes `change`. An error contains the path and the verb of the change.
pub(crate) fn make(disk: &dyn Disk, change: Change) -> Result<(), StoreError> {
    let made = disk.make(&change);
    made.map_err(failed(change.verb(), change.path()))
}

impl<'a> Store<'a> {
    /// Returns the leases of `network` in `data_dir`. The directory need not exist yet. `lock_deadline` limits the wait
    /// for the lock.
    pub fn new(
        disk: &'a dyn Disk,
        data_dir: &Path,
        network: &str,
        lock_deadline: LockDeadline,
    ) -> Self {
        Self {
            disk,
            directory: data_dir.join(network),
            lock_deadline,
        }
    }

    /// Makes the network's directories if they are missing, and waits for the network's lock.
    pub fn lock(&'a self) -> Result<Locked<'a>, StoreError> {
        self.make_directories()?;
        self.lock_file()
    }

    fn make_directories(&self) -> Result<(), StoreError> {
        for directory in [self.attachments(), self.conflicts()] {
            if !directory.is_dir() {
                make(self.disk, Change::MakeDirectory(directory))?;
                // syncs the parents too: otherwise a power loss could remove the new directory with the synced files in
                // it
                for above in self.directory.ancestors().take(2) {
                    make(self.disk, Change::Sync(above.to_owned()))?;
                }
            }
        }
        Ok(())
    }

    /// Waits for the network's lock. Returns `None` if the network has no directory. Makes no directory: host-local's
    /// directory lacks this plugin's own directories, and DEL, CHECK and GC must also work on a full disk.
    pub fn lock_existing(&'a self) -> Result<Option<Locked<'a>>, StoreError> {
        let found = if_exists(fs::read_dir(&self.directory));
        let found = found.map_err(failed("read", &self.directory))?;
        found.map(|_| self.lock_file()).transpose()
    }

    fn lock_file(&'a self) -> Result<Locked<'a>, StoreError> {
        let path = self.directory.join("lock");
        let file = lock::open(&path).map_err(failed("open", &path))?;
        let held = self
            .lock_deadline
            .wait(file)
            .map_err(failed("lock", &path))?;
        let locked = Locked {
            store: self,
            _held: held,
        };
        locked.sweep_unfinished();
        Ok(locked)
    }

    /// Checks that leases can be written, for STATUS. Writes no lease.
    pub fn probe(&self) -> Result<(), StoreError> {
        room::check(&self.directory).map_err(failed("write", &self.directory))
    }

    /// Returns all leased addresses, and all addresses that were found on another machine within the last `time`.
    pub fn taken(&self, time: Duration) -> Result<BTreeSet<IpAddr>, StoreError> {
        let leases = walk::names(&self.directory)?;
        let mut taken: BTreeSet<IpAddr> = leases.iter().filter_map(|it| it.parse().ok()).collect();
        taken.extend(self.noted_within(&self.conflicts(), time)?);
        Ok(taken)
    }

    /// Returns the addresses whose notes in `directory` are not older than `time`.
    fn noted_within(
        &self,
        directory: &Path,
        time: Duration,
    ) -> Result<BTreeSet<IpAddr>, StoreError> {
        let mut noted = BTreeSet::new();
        for name in walk::names(directory)? {
            if note(&directory.join(&name))?.is_some_and(|seen| is_within(&seen, time)) {
                noted.extend(name.parse::<IpAddr>());
            }
        }
        Ok(noted)
    }

    /// Syncs the leases' directory.
    pub fn sync(&self) -> Result<(), StoreError> {
        make(self.disk, Change::Sync(self.directory.clone()))
    }

    /// Removes `path`. Returns false if `path` did not exist.
    fn remove(&self, path: PathBuf) -> Result<bool, StoreError> {
        let change = Change::Remove(path);
        let removed = if_exists(self.disk.make(&change));
        let removed = removed.map_err(failed(change.verb(), change.path()))?;
        Ok(removed.is_some())
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

/// Subdirectory of this plugin in host-local's directory.
const OWN: &str = "rdma-ipam";

/// Name in [`OWN`] of a pointer that is being written.
const NEW_POINTER: &str = "pointer.new";

/// Name in [`OWN`] of the file in which versions without drafts wrote a lease.
const NEW_LEASE: &str = "lease.new";

/// Prefix of the names of pointer files. Host-local has one pointer for each range set.
const POINTER: &str = "last_reserved_ip.";

impl Locked<'_> {
    /// Returns the leases, for reading.
    pub fn store(&self) -> &Store<'_> {
        self.store
    }

    fn make(&self, change: Change) -> Result<(), StoreError> {
        make(self.store.disk, change)
    }

    fn remove(&self, path: PathBuf) -> Result<bool, StoreError> {
        self.store.remove(path)
    }

    /// Removes files that a killed or failed process left unfinished. Only logs a failure, because the next call tries
    /// again.
    fn sweep_unfinished(&self) {
        for path in [NEW_LEASE, NEW_POINTER].map(|name| self.store.own(name)) {
            if fs::symlink_metadata(&path).is_ok()
                && let Err(error) = self.remove(path)
            {
                log::warn!("{error}; the next call tries again");
            }
        }
    }

    /// Makes `change`, which creates `path`. First removes a file at `path`, because a killed process may have left it.
    fn make_anew(&self, path: &Path, change: Change) -> Result<(), StoreError> {
        self.remove(path.to_owned())?;
        self.make(change)
    }

    /// Returns the addresses in the note of `owner`. Returns `None` if the note is missing or malformed.
    pub fn noted(&self, owner: &Owner) -> Result<Option<Vec<IpAddr>>, StoreError> {
        let text = note(&self.store.note_of(owner))?;
        Ok(text.and_then(|text| note::addresses(&text)))
    }

    /// Returns the addresses that `owner` has according to its note.
    pub fn holding(&self, owner: &Owner) -> Result<Holding, StoreError> {
        let Some(ips) = self.noted(owner)? else {
            return Ok(match note(&self.store.note_of(owner))? {
                None => Holding::Nothing,
                Some(_) => Holding::Partial,
            });
        };
        for ip in &ips {
            if !self.lease(*ip)?.is_some_and(|lease| lease.is_of(owner)) {
                return Ok(Holding::Partial);
            }
        }
        Ok(Holding::Complete(ips))
    }

    /// Reads the lease of `ip`.
    pub fn lease(&self, ip: IpAddr) -> Result<Option<Lease>, StoreError> {
        let path = self.store.lease(ip);
        match state_file::read(&path) {
            Ok(content) => Ok(Some(Lease::parse(&content))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if state_file::is_odd(&error) => Ok(Some(Lease::Foreign)),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    /// Removes the owner's note, and the owner's leases of addresses in `ips`. Returns the released addresses.
    /// [`Store::sync`] syncs the removal to disk.
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

    /// Returns the last assigned address of the round robin `pointer`.
    pub fn last(&self, pointer: &str) -> Option<IpAddr> {
        let text = state_file::read(&self.store.pointer(pointer)).ok()?;
        str::from_utf8(&text).ok()?.trim().parse().ok()
    }

    /// Stores `ip` as the last assigned address of the round robin `pointer`.
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

    /// Records that another machine uses `ip`. The plugin then avoids `ip` for [`AVOIDED`].
    pub fn avoid(&self, ip: IpAddr) -> Result<(), StoreError> {
        self.note_now(&self.store.conflicts(), ip)
    }

    /// Makes the note of `ip` in `directory` with the present time. Makes the directory if it is missing. Replaces an
    /// earlier note.
    fn note_now(&self, directory: &Path, ip: IpAddr) -> Result<(), StoreError> {
        if !directory.is_dir() {
            self.make(Change::MakeDirectory(directory.to_owned()))?;
        }
        let path = directory.join(ip.to_string());
        let note = Change::Note {
            path: path.clone(),
            text: seconds().to_string(),
        };
        self.make_anew(&path, note)
    }

    /// Returns true if `ip` has a lease of any owner.
    pub fn is_held(&self, ip: IpAddr) -> Result<bool, StoreError> {
        let path = self.store.lease(ip);
        let found = if_exists(fs::symlink_metadata(&path));
        Ok(found.map_err(failed("read", &path))?.is_some())
    }

    /// Returns true if `ip` was found on another machine within the last `time`.
    pub fn is_avoided(&self, ip: IpAddr, time: Duration) -> Result<bool, StoreError> {
        let conflict = note(&self.store.conflicts().join(ip.to_string()))?;
        Ok(conflict.is_some_and(|seen| is_within(&seen, time)))
    }
}

fn note(path: &Path) -> Result<Option<String>, StoreError> {
    match fs::read_link(path) {
        Ok(text) => Ok(Some(text.to_string_lossy().into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // EINVAL: the file is no link, and so no note
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(Some(String::new())),
        Err(error) => Err(failed("read", path)(error)),
    }
}

fn is_within(seen: &str, time: Duration) -> bool {
    note::is_within(seen, seconds(), time)
}

fn seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}
