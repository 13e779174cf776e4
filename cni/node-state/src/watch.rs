// SPDX-License-Identifier: Apache-2.0
//! Waits for changes in directories and files by inotify. An idle watch uses no CPU time. If the kernel has no instance
//! or watch left for this user (EMFILE, ENOSPC: `inotify_init(2)`, `inotify_add_watch(2)`), [`Watch`] reports a change
//! every second.

use inotify::{EventStream, Inotify, WatchMask};
use nix::errno::Errno;
use std::{
    future::poll_fn,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    task::Poll,
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_stream::{Stream, StreamExt};

/// Size of the buffer in bytes, enough for some dozen events. [`Watch`] reads further events with the next read.
const BUFFER: usize = 4096;

/// Interval at which [`Watch`] reports a change for paths without events.
const WITHOUT_EVENTS: Duration = Duration::from_secs(1);

/// Watched files and directories, which need not exist yet.
pub struct Watch {
    /// Event stream. `None`: the kernel had no inotify instance left.
    events: Option<EventStream<[u8; BUFFER]>>,
    paths: Vec<PathBuf>,
    /// True if a path has no events, which the log already reports.
    lacks_events: bool,
}

impl Watch {
    /// Watches `paths`. For a missing path, watches its nearest existing ancestor directory.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let mut watch = Self {
            events: None,
            paths,
            lacks_events: false,
        };
        watch.arm();
        watch
    }

    /// Watches `paths` instead of the present paths. Returns true if they differ.
    pub fn replace(&mut self, paths: Vec<PathBuf>) -> bool {
        if paths == self.paths {
            return false;
        }
        (self.events, self.paths) = (None, paths);
        self.arm();
        true
    }

    /// Waits for an event in one of the paths. Returns once for all pending events. An event does not prove that the
    /// content changed.
    pub async fn changed(&mut self) {
        let event = async {
            if let Some(events) = &mut self.events {
                match events.next().await {
                    Some(Ok(_)) => return drain(events).await,
                    Some(Err(error)) => log::warn!("cannot read inotify events: {error}"),
                    None => {}
                }
            }
            tokio::time::sleep(WITHOUT_EVENTS).await;
        };
        match self.lacks_events {
            // report a change after an event, or at the latest after the interval
            true => drop(tokio::time::timeout(WITHOUT_EVENTS, event).await),
            false => event.await,
        }
        self.arm();
    }

    /// Increments `changes` after each change, forever.
    pub async fn count(mut self, changes: watch::Sender<u64>) {
        loop {
            self.changed().await;
            changes.send_modify(|count| *count += 1);
        }
    }

    /// Adds a watch for every path, because a directory that was removed and made again needs a new watch. Existing
    /// watches do not change.
    fn arm(&mut self) {
        let armed = self.try_to_arm();
        match &armed {
            Err(error) if !self.lacks_events => log::warn!(
                "no events for {:?}: {error}; checking every {WITHOUT_EVENTS:?}",
                self.paths
            ),
            Ok(()) if self.lacks_events => log::info!("events for {:?} work again", self.paths),
            _ => {}
        }
        self.lacks_events = armed.is_err();
    }

    fn try_to_arm(&mut self) -> io::Result<()> {
        let events = match self.events.take() {
            Some(events) => events,
            None => {
                let inotify = Inotify::init().map_err(with_remedy)?;
                inotify.into_event_stream([0; BUFFER])?
            }
        };
        let events = self.events.insert(events);
        let armed: Vec<_> = self.paths.iter().map(|path| arm(events, path)).collect();
        armed.into_iter().collect()
    }
}

/// Waits until `at`. `None` means forever.
pub async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Reads all pending events, because each unread event would cause another observation.
async fn drain(events: &mut EventStream<[u8; BUFFER]>) {
    poll_fn(|context| {
        while let Poll::Ready(Some(Ok(_))) = Pin::new(&mut *events).poll_next(context) {}
        Poll::Ready(())
    })
    .await;
}

/// Watches `path`. If `path` is missing, watches its nearest existing ancestor directory.
fn arm(events: &EventStream<[u8; BUFFER]>, path: &Path) -> io::Result<()> {
    let mask = WatchMask::CREATE
        | WatchMask::MOVED_TO
        | WatchMask::MOVED_FROM
        | WatchMask::DELETE
        | WatchMask::CLOSE_WRITE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF;
    let mut ancestors = path.ancestors();
    let mut below: Option<&Path> = None;
    while let Some(ancestor) = ancestors.next() {
        let mask = match ancestor.ends_with("cgroup.events") {
            // the kernel reports its own changes of `cgroup.events` only by MODIFY
            true => mask | WatchMask::MODIFY,
            false => mask,
        };
        match events.watches().add(ancestor, mask) {
            // another program may have made the next path component before this ancestor was watched
            Ok(_) if below.is_some_and(Path::exists) => {
                ancestors = path.ancestors();
                below = None;
            }
            Ok(_) => return Ok(()),
            Err(error) if is_absent(&error) => below = Some(ancestor),
            Err(error) => return Err(with_remedy(error)),
        }
    }
    Ok(())
}

/// Adds the remedy to an error of inotify, if the kernel has no instance or watch left for this user.
pub(crate) fn with_remedy(error: io::Error) -> io::Error {
    let limit = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE) => "max_user_instances, or the daemon's limit of open files",
        Some(Errno::ENOSPC) => "max_user_watches",
        _ => return error,
    };
    io::Error::other(format!("{error}, so raise the sysctl fs.inotify.{limit}"))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("paths", &self.paths).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::Write};

    async fn has_change(watch: &mut Watch) -> bool {
        tokio::time::timeout(Duration::from_secs(60), watch.changed())
            .await
            .is_ok()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_directory_that_is_made_later_or_again_is_watched() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = root.path().join("kubelet/device-plugins");
        let mut watch = Watch::new(vec![directory.clone()]);
        for _ in 0..3 {
            fs::create_dir_all(&directory).expect("made");
            assert!(has_change(&mut watch).await, "the directory was made");
            // read the further events of the made directory
            while tokio::time::timeout(Duration::from_millis(50), watch.changed())
                .await
                .is_ok()
            {}
            fs::write(directory.join("kubelet.sock"), "").expect("written");
            assert!(has_change(&mut watch).await, "a file in it");
            fs::remove_dir_all(root.path().join("kubelet")).expect("removed");
            assert!(has_change(&mut watch).await, "all of it went");
            while tokio::time::timeout(Duration::from_millis(50), watch.changed())
                .await
                .is_ok()
            {}
        }
    }

    /// [`Watch`] reports many events as few changes.
    #[tokio::test(flavor = "current_thread")]
    async fn simultaneous_events_are_one_change() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut watch = Watch::new(vec![directory.path().to_owned()]);
        for number in 0..500 {
            fs::write(directory.path().join(number.to_string()), "").expect("written");
        }
        let mut changes = 0;
        while tokio::time::timeout(Duration::from_millis(200), watch.changed())
            .await
            .is_ok()
        {
            changes += 1;
        }
        assert!((1..10).contains(&changes), "{changes} of a thousand events");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_file_is_read_when_its_writer_has_closed_it_and_a_cgroups_at_once() {
        let root = tempfile::tempdir().expect("a directory");
        for (name, is_reported) in [("conf.yaml", false), ("cgroup.events", true)] {
            let path = root.path().join(name);
            fs::write(&path, "").expect("written");
            let mut watch = Watch::new(vec![path.clone()]);
            let mut file = fs::OpenOptions::new()
                .append(true)
                .open(&path)
                .expect("open");
            file.write_all(b"populated 0\n").expect("written");
            let change = tokio::time::timeout(Duration::from_millis(200), watch.changed()).await;
            assert_eq!(change.is_ok(), is_reported, "{name}");
            drop(file);
            assert!(has_change(&mut watch).await, "{name} was closed");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn no_event_is_no_change() {
        let root = tempfile::tempdir().expect("a directory");
        let mut watch = Watch::new(vec![root.path().join("a/b")]);
        let nothing = tokio::time::timeout(Duration::from_millis(200), watch.changed()).await;
        assert!(nothing.is_err(), "an event of nothing");
    }
}
