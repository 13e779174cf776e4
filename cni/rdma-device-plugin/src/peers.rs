// SPDX-License-Identifier: Apache-2.0
//! Several daemons on one node: while a DaemonSet is updated, the new daemon starts before the old one ends.
//!
//! | file below `<stateDir>/daemons` | held (flock) by |
//! |---|---|
//! | `<number>-<name>.daemon` | one daemon, as long as it runs; a newer daemon has a higher number |
//! | `lead.lock` | the leader |
//!
//! The newest daemon is the leader. Only the leader runs the tasks of [`leader`](crate::leader), and writes the files
//! of [`publish`](crate::publish).
//!
//! When a newer daemon appears, the earlier leader stops these tasks and then releases `lead.lock`. The newer daemon
//! takes the lock. The kernel releases the locks of a process that ends. If the new daemon dies, the earlier daemon
//! therefore becomes the leader again.

use cni_protocol::{
    lock::{self, Held},
    state_file,
};
use node_state::watch::Watch;
use std::{
    fs::{self, DirBuilder, OpenOptions, TryLockError},
    hash::{BuildHasher, Hasher, RandomState},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{sync::watch, task::JoinSet};

const SUFFIX: &str = ".daemon";

/// Delay of a second check after an event. When a process is killed, the kernel first sends the event that the
/// process's file was closed, and then releases the file's lock (`__fput` in `fs/file_table.c`).
const AFTER_AN_EVENT: Duration = Duration::from_millis(100);

/// Intervals between attempts to lock. The daemon uses the short interval for about 5 s, and then the long interval.
const TRIES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// Role of a daemon among the daemons of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// True if no newer daemon runs.
    pub leads: bool,
    /// True if no other daemon runs.
    pub is_alone: bool,
}

impl Role {
    /// Role of a daemon that detects no other daemon.
    pub const ALONE: Self = Self {
        leads: true,
        is_alone: true,
    };
}

/// File by which other daemons detect a daemon.
#[derive(Clone, Debug)]
struct Place {
    directory: PathBuf,
    file_name: String,
}

impl Place {
    /// Returns the file names of the other running daemons, the oldest first. Removes the files of killed daemons.
    fn others(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let is_other = |name: &String| name.ends_with(SUFFIX) && *name != self.file_name;
        let mut others: Vec<_> = names
            .filter(is_other)
            .filter(|name| is_alive(&self.directory.join(name)))
            // ignore the hidden file of a daemon that is still starting
            .filter(|name| !name.starts_with('.'))
            .collect();
        others.sort();
        others
    }

    fn role(&self) -> Role {
        let others = self.others();
        Role {
            leads: others.last().is_none_or(|newest| *newest < self.file_name),
            is_alone: others.is_empty(),
        }
    }
}

/// Announcement of a running daemon. Dropping this value removes the daemon's file.
#[derive(Debug)]
pub struct Presence {
    place: Place,
    name: String,
    _held: Held,
}

impl Presence {
    /// Announces this daemon to other daemons with the same state directory.
    ///
    /// # Errors
    /// The directory or the daemon's file cannot be made or locked.
    pub fn announce(state_dir: &Path) -> io::Result<Self> {
        let directory = make(state_dir)?;
        let name = format!(
            "{:08x}",
            RandomState::new().build_hasher().finish() & 0xffff_ffff
        );
        let mut place = Place {
            directory,
            file_name: String::new(),
        };
        // if two daemons start at the same moment and choose the same number, the order of their names decides which is
        // newer
        let newest = place.others().pop().unwrap_or_default();
        let newest: u64 = newest
            .split('-')
            .next()
            .unwrap_or_default()
            .parse()
            .unwrap_or(0);
        place.file_name = format!("{:010}-{name}{SUFFIX}", newest.saturating_add(1));
        // lock the file before other daemons can see it
        let hidden = place.directory.join(format!(".{}", place.file_name));
        let make = || {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&hidden)
        };
        let held = lock::hold(&hidden, make)?;
        fs::rename(&hidden, place.directory.join(&place.file_name))?;
        Ok(Self {
            place,
            name,
            _held: held,
        })
    }

    /// Announces this daemon, and observes the other daemons in a task of `watchers`. Returns `None` if the state
    /// directory is unusable. This daemon then cannot detect other daemons.
    pub fn announce_and_follow(
        state_dir: &Path,
        watchers: &mut JoinSet<()>,
    ) -> (Option<Self>, watch::Receiver<Role>) {
        match Self::announce(state_dir) {
            Ok(presence) => {
                let (sender, role) = watch::channel(presence.role());
                watchers.spawn(presence.follow(sender));
                (Some(presence), role)
            }
            Err(error) => {
                log::warn!("cannot detect another daemon of this node: {state_dir:?}: {error}");
                let (sender, role) = watch::channel(Role::ALONE);
                watchers.spawn(async move { drop((std::future::pending::<()>().await, sender)) });
                (None, role)
            }
        }
    }

    /// Returns the random name of this daemon, which has eight hexadecimal digits.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the present role.
    pub fn role(&self) -> Role {
        self.place.role()
    }

    /// Returns true if `name` is the name of this daemon or of another running daemon.
    pub fn runs(&self, name: &str) -> bool {
        let ending = format!("-{name}{SUFFIX}");
        name == self.name
            || self
                .place
                .others()
                .iter()
                .any(|other| other.ends_with(&ending))
    }

    /// Sends changes of this daemon's role to `role`.
    pub fn follow(&self, role: watch::Sender<Role>) -> impl Future<Output = ()> + Send + use<> {
        let place = self.place.clone();
        let mut watch = Watch::new(vec![place.directory.clone()]);
        async move {
            loop {
                // first check without an event: another daemon may have started before this watch existed
                for wait in [Duration::ZERO, AFTER_AN_EVENT] {
                    tokio::time::sleep(wait).await;
                    let now = place.role();
                    role.send_if_modified(|role| std::mem::replace(role, now) != now);
                }
                watch.changed().await;
            }
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.place.directory.join(&self.place.file_name));
    }
}

/// Locks leadership. Waits while another process has the lock. Dropping the returned value releases the lock.
///
/// # Errors
/// The file cannot be made or locked.
pub async fn lock_leadership(state_dir: &Path) -> io::Result<Held> {
    let path = make(state_dir)?.join("lead.lock");
    // open the file only once: each close of a file that was open for writing is an event for watchers of the directory
    let file = lock::open(&path)?;
    let mut tried = 0;
    loop {
        if let Some(held) = lock::attempt(file.try_clone()?)? {
            return Ok(held);
        }
        tried += 1;
        tokio::time::sleep(TRIES[usize::from(tried > 250)]).await;
    }
}

fn make(state_dir: &Path) -> io::Result<PathBuf> {
    let directory = state_dir.join("daemons");
    fs::create_dir_all(state_dir)?;
    match DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(directory),
    }
}

/// Returns true if a process holds the file's lock. Removes the file if no process holds the lock.
fn is_alive(path: &Path) -> bool {
    let Ok(file) = state_file::open(path) else {
        return false;
    };
    // use a shared lock: a second daemon that makes this check at the same time must not find the file locked
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => true,
        Err(TryLockError::Error(_)) => false,
        Ok(()) => {
            let _ = fs::remove_file(path);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn the_newest_one_that_runs_leads() {
        let state = tempfile::tempdir().expect("a directory");
        let old = Presence::announce(state.path()).expect("announced");
        assert_eq!(old.role(), Role::ALONE);
        let (sender, mut role) = watch::channel(old.role());
        let following = tokio::spawn(old.follow(sender));
        let lead = lock_leadership(state.path()).await.expect("free");

        let new = Presence::announce(state.path()).expect("announced");
        let second = Role {
            leads: false,
            is_alone: false,
        };
        role.wait_for(|it| *it == second).await.expect("a role");
        assert!(new.role().leads && !new.role().is_alone);
        assert!(new.runs(old.name()) && new.runs(new.name()));
        let waiting = lock_leadership(state.path());
        let early = tokio::time::timeout(Duration::from_millis(60), waiting).await;
        assert!(early.is_err(), "two lead");
        drop(lead);
        lock_leadership(state.path()).await.expect("free");

        let name = new.name().to_owned();
        drop(new);
        role.wait_for(|it| *it == Role::ALONE)
            .await
            .expect("a role");
        assert!(!old.runs(&name));
        following.abort();
    }

    /// The next daemon removes the file of a killed daemon, also if this daemon was killed while it started.
    #[test]
    fn files_of_a_killed_daemon_are_removed() {
        let state = tempfile::tempdir().expect("a directory");
        let directory = make(state.path()).expect("a directory");
        let left = [".0000000001-00000000.daemon", "0000000001-00000001.daemon"];
        let left = left.map(|name| directory.join(name));
        for path in &left {
            fs::write(path, "").expect("a file");
        }
        let next = Presence::announce(state.path()).expect("announced");
        assert_eq!(next.role(), Role::ALONE);
        assert!(left.iter().all(|path| !path.exists()));
    }

    /// A daemon detects another daemon that started between the first check and the watch.
    #[tokio::test(flavor = "current_thread")]
    async fn a_daemon_before_the_watch_is_noticed() {
        let state = tempfile::tempdir().expect("a directory");
        let old = Presence::announce(state.path()).expect("announced");
        let (sender, mut role) = watch::channel(old.role());
        let _new = Presence::announce(state.path()).expect("announced");
        let following = tokio::spawn(old.follow(sender));
        let changed = role.wait_for(|it| !it.leads);
        let changed = tokio::time::timeout(Duration::from_secs(60), changed).await;
        assert!(changed.is_ok_and(|it| it.is_ok()), "two lead");
        following.abort();
    }

    #[test]
    fn a_killed_daemon_does_not_count() {
        let state = tempfile::tempdir().expect("a directory");
        let directory = make(state.path()).expect("made");
        let left = directory.join(format!("{:010}-00000000{SUFFIX}", 7));
        fs::write(&left, "").expect("written");
        let daemon = Presence::announce(state.path()).expect("announced");
        assert_eq!(daemon.role(), Role::ALONE);
        assert!(!left.exists());
        drop(daemon);
        let entries = fs::read_dir(directory).expect("a directory").count();
        assert_eq!(entries, 0);
    }
}
