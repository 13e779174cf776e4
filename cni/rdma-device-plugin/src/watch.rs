// SPDX-License-Identifier: Apache-2.0
//! Waiting for changes in directories, by inotify: nothing runs while nothing happens. Where the kernel has no
//! instance or watch left for this user (EMFILE, ENOSPC: `inotify_init(2)`, `inotify_add_watch(2)`), it is as
//! if something had changed every second.

use inotify::{EventStream, Inotify, WatchMask};
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

/// Room for some dozen events; more of them are read in turn.
const BUFFER: usize = 4096;

/// How long to wait before looking again when the kernel gives no events.
const WITHOUT_EVENTS: Duration = Duration::from_secs(1);

/// Files and directories that are looked at, whether they are there yet or not.
pub struct Watch {
    /// None: the kernel had no instance left.
    events: Option<EventStream<[u8; BUFFER]>>,
    paths: Vec<PathBuf>,
    /// No events tell of one of them, which was said.
    is_deaf: bool,
}

impl Watch {
    /// Watches `paths`, and where one of them is not there, the nearest directory above it.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let mut watch = Self {
            events: None,
            paths,
            is_deaf: false,
        };
        watch.arm();
        watch
    }

    /// Waits until something happened in one of them. What has happened by then is one change; it need not mean a
    /// difference.
    pub async fn changed(&mut self) {
        let heard = async {
            if let Some(events) = &mut self.events {
                match events.next().await {
                    Some(Ok(_)) => return drain(events).await,
                    Some(Err(error)) => log::warn!("cannot read inotify events: {error}"),
                    None => {}
                }
            }
            tokio::time::sleep(WITHOUT_EVENTS).await;
        };
        match self.is_deaf {
            // it comes to the same whether it was heard
            true => drop(tokio::time::timeout(WITHOUT_EVENTS, heard).await),
            false => heard.await,
        }
        self.arm();
    }

    /// Counts the changes, for ever.
    pub async fn count(mut self, changes: watch::Sender<u64>) {
        loop {
            self.changed().await;
            changes.send_modify(|count| *count += 1);
        }
    }

    /// A directory that was made again is another one: every path is added again, which for one
    /// that is watched already changes nothing.
    fn arm(&mut self) {
        let armed = self.try_to_arm();
        match &armed {
            Err(error) if !self.is_deaf => log::warn!(
                "no changes are told of {:?}: {error}; they are looked at every {WITHOUT_EVENTS:?} \
                 (sysctl fs.inotify.max_user_instances and max_user_watches)",
                self.paths
            ),
            Ok(()) if self.is_deaf => log::info!("changes are told of {:?} again", self.paths),
            _ => {}
        }
        self.is_deaf = armed.is_err();
    }

    fn try_to_arm(&mut self) -> io::Result<()> {
        let events = match self.events.take() {
            Some(events) => events,
            None => Inotify::init()?.into_event_stream([0; BUFFER])?,
        };
        let events = self.events.insert(events);
        let armed: Vec<_> = self.paths.iter().map(|path| arm(events, path)).collect();
        armed.into_iter().collect()
    }
}

/// Waits until then; for ever, if there is no such time.
pub(crate) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Takes what has come besides, for which there would be a look each, long after it.
async fn drain(events: &mut EventStream<[u8; BUFFER]>) {
    poll_fn(|context| {
        while let Poll::Ready(Some(Ok(_))) = Pin::new(&mut *events).poll_next(context) {}
        Poll::Ready(())
    })
    .await;
}

/// Adds `path`, or what is there of the way to it.
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
        match events.watches().add(ancestor, mask) {
            // the next one down may have been made before this one was watched
            Ok(_) if below.is_some_and(Path::exists) => {
                ancestors = path.ancestors();
                below = None;
            }
            Ok(_) => return Ok(()),
            Err(error) if is_absent(&error) => below = Some(ancestor),
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
    use std::fs;

    async fn heard(watch: &mut Watch) -> bool {
        tokio::time::timeout(Duration::from_secs(5), watch.changed())
            .await
            .is_ok()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_directory_that_is_made_later_and_made_again_is_watched() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = root.path().join("kubelet/device-plugins");
        let mut watch = Watch::new(vec![directory.clone()]);
        for _ in 0..3 {
            fs::create_dir_all(&directory).expect("made");
            assert!(heard(&mut watch).await, "the directory was made");
            // whatever came in two events is read
            while tokio::time::timeout(Duration::from_millis(50), watch.changed())
                .await
                .is_ok()
            {}
            fs::write(directory.join("kubelet.sock"), "").expect("written");
            assert!(heard(&mut watch).await, "a file in it");
            fs::remove_dir_all(root.path().join("kubelet")).expect("removed");
            assert!(heard(&mut watch).await, "all of it went");
            while tokio::time::timeout(Duration::from_millis(50), watch.changed())
                .await
                .is_ok()
            {}
        }
    }

    /// As while somebody writes a directory's files again and again.
    #[tokio::test(flavor = "current_thread")]
    async fn what_has_come_together_is_one_change() {
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
    async fn silence_is_silence() {
        let root = tempfile::tempdir().expect("a directory");
        let mut watch = Watch::new(vec![root.path().join("a/b")]);
        let nothing = tokio::time::timeout(Duration::from_millis(200), watch.changed()).await;
        assert!(nothing.is_err(), "an event of nothing");
    }
}
