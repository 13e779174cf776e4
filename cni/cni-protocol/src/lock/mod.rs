// SPDX-License-Identifier: Apache-2.0
//! File locks. Every wait for a lock has a time limit, except in [`hold`].

use crate::state_file;
use std::{
    fs::{self, File, Permissions, TryLockError},
    io,
    ops::Deref,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

mod watch;

use watch::Watch;
pub use watch::{is_kept, process};

/// Time limit for one lock. Usually a process holds a lock for milliseconds, or for some seconds when many pods start
/// at once.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Time limit for all locks of a verb, from the verb's start. A verb takes several locks one after the other. Kubelet
/// waits two minutes for the runtime (`runtimeRequestTimeout`). This limit is shorter, so kubelet still receives the
/// error that names the lock's holder.
pub const VERB_LIMIT: Duration = Duration::from_secs(60);

/// Minimum time limit for the lock that a failed ADD needs to restore devices, even after [`VERB_LIMIT`]. With less
/// time, ADD would often leave the devices in the pod, because verbs of other pods have the lock.
pub const UNDO_LIMIT: Duration = Duration::from_secs(15);

/// Minimum time limit for one lock, even after [`VERB_LIMIT`]. Usually a holder releases the lock within this time.
const LEAST: Duration = Duration::from_secs(1);

/// Interval between two tries of a process that cannot start a thread for the wait.
const PAUSE: Duration = Duration::from_millis(10);

/// A file lock of this process. Dropping it releases the lock.
///
/// Drop unlocks the file explicitly, because closing the file is not enough. A lock belongs to the open file
/// (`flock(2)`). A child that another thread has forked also has this file open until the child executes another
/// program.
#[derive(Debug)]
pub struct Held(File);

impl Drop for Held {
    fn drop(&mut self) {
        // if unlocking fails, the last close of the file releases the lock
        let _ = self.0.unlock();
    }
}

impl Deref for Held {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

/// The time limit for all locks of a verb.
#[derive(Clone, Copy, Debug)]
pub struct LockDeadline {
    until: Instant,
}

impl LockDeadline {
    /// Returns the limit for a verb that starts now.
    pub fn of_verb() -> Self {
        Self::until(Instant::now() + VERB_LIMIT)
    }

    /// Returns a limit that ends at `until`.
    pub fn until(until: Instant) -> Self {
        Self { until }
    }

    /// Returns this limit, or the limit `least` from now if that is later.
    pub fn at_least(self, least: Duration) -> Self {
        Self::until(self.until.max(Instant::now() + least))
    }

    /// Waits for the lock of `file` until this limit, but at least one second and at most [`LIMIT`].
    ///
    /// # Errors
    /// Returns the errors of [`wait`].
    pub fn wait(self, file: File) -> io::Result<Held> {
        wait(file, self.left())
    }

    fn left(self) -> Duration {
        let left = self.until.saturating_duration_since(Instant::now());
        left.clamp(LEAST, LIMIT)
    }
}

/// Opens the lock file at `path`, or creates it. Sets mode 0600, because any user who can open the file can lock it.
/// Files of earlier versions may have another mode.
///
/// # Errors
/// The system call fails, or `path` is not a regular file ([`state_file`]).
pub fn open(path: &Path) -> io::Result<File> {
    let file = state_file::make(path, 0o600)?;
    protect(&file)?;
    Ok(file)
}

/// Sets the mode of `file` to 0600 if the mode has other bits. Does nothing if the file has several hard links, because
/// it may then belong to another program.
///
/// # Errors
/// The system call fails.
pub fn protect(file: &File) -> io::Result<()> {
    let found = file.metadata()?;
    match (found.mode() & 0o177, found.nlink()) {
        (0, _) | (_, 2..) => Ok(()),
        _ => file.set_permissions(Permissions::from_mode(0o600)),
    }
}

/// Takes the lock of `file`. Returns `None` if the file is already locked.
///
/// # Errors
/// The system call fails.
pub fn attempt(file: File) -> io::Result<Option<Held>> {
    Ok(takes(&file)?.then_some(file).map(Held))
}

/// Takes the lock of `file` without waiting. Returns false if the file is already locked.
fn takes(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Waits for the lock of `file`, at most `limit`.
///
/// # Errors
/// `TimedOut` after `limit`: the text names the last observed holder. Other errors come from the system calls.
pub fn wait(file: File, limit: Duration) -> io::Result<Held> {
    if takes(&file)? {
        return Ok(Held(file));
    }
    let mut watch = Watch::begin(file.metadata()?, limit);
    let locked = match in_queue(&file, &mut watch) {
        Some(locked) => locked?,
        None => poll_lock(&file, &mut watch)?,
    };
    match locked {
        true => Ok(Held(file)),
        false => Err(io::Error::new(io::ErrorKind::TimedOut, watch.busy(limit))),
    }
}

/// Starts a thread that waits for the lock of `file` in the kernel's queue. The queue is fair, but has no time limit.
/// Returns true if the thread got the lock in time. Returns `None` if no thread can be started.
fn in_queue(file: &File, watch: &mut Watch) -> Option<io::Result<bool>> {
    let waiting = file.try_clone().ok()?;
    let (sender, receiver) = mpsc::sync_channel(0);
    let wait = move || {
        let locked = waiting.lock();
        // sending fails if the caller no longer waits
        if sender.send(locked).is_err() {
            let _ = waiting.unlock();
        }
    };
    thread::Builder::new().spawn(wait).ok()?;
    loop {
        match receiver.recv_timeout(watch.until_next()) {
            Ok(locked) => return Some(locked.map(|()| true)),
            Err(RecvTimeoutError::Disconnected) => return Some(Ok(false)),
            Err(RecvTimeoutError::Timeout) if watch.observe() => return Some(Ok(false)),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Polls the lock of `file`. Returns false after the time limit.
fn poll_lock(file: &File, watch: &mut Watch) -> io::Result<bool> {
    while !takes(file)? {
        if watch.until_next().is_zero() && watch.observe() {
            return Ok(false);
        }
        thread::sleep(PAUSE);
    }
    Ok(true)
}

/// Waits without a limit for the lock of the file at `path`. `open` opens or creates the file. Calls `open` again if an
/// earlier holder has removed or renamed the file.
///
/// # Errors
/// The errors of `open` and of the system calls.
pub fn hold(path: &Path, open: impl Fn() -> io::Result<File>) -> io::Result<Held> {
    loop {
        let file = open()?;
        file.lock()?;
        let held = Held(file);
        if is_still(&held, path) {
            return Ok(held);
        }
    }
}

/// Returns true if `path` still leads to the lock file `file`. An earlier holder may have removed or replaced it.
pub fn is_still(file: &File, path: &Path) -> bool {
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(theirs)) => id(ours) == id(theirs),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::resource::{Resource, setrlimit};
    use std::{
        error::Error,
        fmt,
        io::{Read, Write},
        os::unix::process::CommandExt,
        process::{Command, Stdio},
    };

    /// An error of a caller, whose source is the lock's error.
    #[derive(Debug)]
    struct Above(io::Error);

    impl fmt::Display for Above {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "cannot lock: {}", self.0)
        }
    }

    impl Error for Above {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_lock_that_is_held_is_waited_for_with_an_end_and_its_holder_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = wait(open(&path).unwrap(), LIMIT).unwrap();
        let error = wait(open(&path).unwrap(), Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let name = fs::read_to_string("/proc/self/comm").unwrap();
        let own = format!("process {} ({})", std::process::id(), name.trim_end());
        let words = format!("{own} held the lock during the whole wait of 1 s; try again");
        assert_eq!(error.to_string(), words);
        assert!(is_kept(&Above(error)));
        // the holder releases the lock in time
        let waiting = thread::spawn(move || wait(open(&path).unwrap(), LIMIT));
        thread::sleep(Duration::from_millis(50));
        drop(held);
        waiting.join().unwrap().unwrap();
    }

    /// The test runs itself in a second process, whose address space is too small for another thread's stack.
    #[test]
    fn a_lock_is_waited_for_where_no_thread_can_be_started() {
        const PATH: &str = "RDMA_TEST_LOCK";
        const NAME: &str = "lock::tests::a_lock_is_waited_for_where_no_thread_can_be_started";
        if let Some(path) = std::env::var_os(PATH) {
            let pages = fs::read_to_string("/proc/self/statm").unwrap();
            let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
            let limit = pages * 4096 + (256 << 10);
            setrlimit(Resource::RLIMIT_AS, limit, limit).unwrap();
            thread::Builder::new().spawn(|| {}).unwrap_err();
            wait(open(path.as_ref()).unwrap(), LIMIT).unwrap();
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = wait(open(&path).unwrap(), LIMIT).unwrap();
        let mut waiting = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME])
            .env(PATH, &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(300));
        assert_eq!(waiting.try_wait().unwrap(), None, "it does not wait");
        drop(held);
        assert!(waiting.wait().unwrap().success());
    }

    /// This process has the lock. First a second process waits for it, and then a thread of this process. The second
    /// process gets the lock, and the thread waits until its time limit.
    #[test]
    fn the_last_lock_holder_is_not_blamed_for_the_whole_wait() {
        const PATH: &str = "RDMA_TEST_NEXT";
        const NAME: &str = "lock::tests::the_last_lock_holder_is_not_blamed_for_the_whole_wait";
        if let Some(path) = std::env::var_os(PATH) {
            let _held = wait(open(path.as_ref()).unwrap(), LIMIT).unwrap();
            io::stdin().read_to_end(&mut vec![]).unwrap();
            return;
        }
        let in_turn = || {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("lock");
            let held = wait(open(&path).unwrap(), LIMIT).unwrap();
            let mut next = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", NAME])
                .env(PATH, &path)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let waits = format!("-> FLOCK  ADVISORY  WRITE {} ", next.id());
            while !fs::read_to_string("/proc/locks").unwrap().contains(&waits) {
                assert_eq!(next.try_wait().unwrap(), None, "it does not wait");
                thread::sleep(PAUSE);
            }
            let file = open(&path).unwrap();
            let waiting = thread::spawn(move || wait(file, Duration::from_secs(2)).err());
            thread::sleep(Duration::from_secs(1));
            drop(held);
            let error = waiting.join().unwrap();
            drop(next.stdin.take());
            assert!(next.wait().unwrap().success());
            let last = format!(
                "several processes held the lock in turn for 2 s, most recently process {} (",
                next.id()
            );
            error.filter(|it| it.to_string().starts_with(&last))
        };
        // several tries: the waiting thread may get the lock before the second process, or this thread may be late
        let error = (0..5).find_map(|_| in_turn());
        let error = error.expect("the last one is named");
        assert!(error.to_string().ends_with("); try again"), "{error}");
        assert!(!is_kept(&Above(error)));
        assert!(!is_kept(&io::Error::from(io::ErrorKind::TimedOut)));
    }

    #[test]
    fn a_lock_that_was_let_go_of_is_free_though_a_forked_child_has_the_file_yet() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = wait(open(&path).unwrap(), LIMIT).unwrap();
        let (mut forked, has_forked) = io::pipe().unwrap();
        let (until, mut go_on) = io::pipe().unwrap();
        let mut child = Command::new("true");
        // SAFETY: the calls are a write and a read, which a forked child may make before exec
        unsafe {
            child.pre_exec(move || {
                (&has_forked).write_all(&[0])?;
                (&until).read_exact(&mut [0])
            });
        }
        let child = thread::spawn(move || child.status());
        forked.read_exact(&mut [0]).unwrap();
        drop(held);
        let again = attempt(open(&path).unwrap()).unwrap();
        go_on.write_all(&[0]).unwrap();
        assert!(child.join().unwrap().unwrap().success());
        assert!(again.is_some(), "it is still held");
        assert!(attempt(open(&path).unwrap()).unwrap().is_none());
    }

    #[test]
    fn all_locks_of_a_verb_share_its_time() {
        let left = |seconds| {
            let left = LockDeadline::until(Instant::now() + Duration::from_secs(seconds)).left();
            left.as_secs_f64().round()
        };
        assert_eq!(
            [60, 31, 30, 10, 1, 0].map(left),
            [30., 30., 30., 10., 1., 1.]
        );
        let over = Instant::now().checked_sub(Duration::from_secs(5)).unwrap();
        assert_eq!(LockDeadline::until(over).left(), LEAST);
        let more = |lock_deadline: LockDeadline| {
            lock_deadline
                .at_least(UNDO_LIMIT)
                .left()
                .as_secs_f64()
                .round()
        };
        assert_eq!(more(LockDeadline::until(over)), UNDO_LIMIT.as_secs_f64());
        assert_eq!(more(LockDeadline::of_verb()), LIMIT.as_secs_f64());
        let whole = LockDeadline::of_verb().until - Instant::now();
        assert_eq!(whole.as_secs_f64().round(), VERB_LIMIT.as_secs_f64());
    }

    #[test]
    fn a_lock_that_others_may_open_is_corrected_and_a_link_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        // a file of another program with a second hard link
        let other = directory.path().join("other");
        fs::write(&other, "").unwrap();
        fs::set_permissions(&other, Permissions::from_mode(0o644)).unwrap();
        let named = directory.path().join("named");
        fs::hard_link(&other, &named).unwrap();
        attempt(open(&named).unwrap()).unwrap().expect("free");
        assert_eq!(fs::metadata(&other).unwrap().mode() & 0o777, 0o644);

        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        open(&link).unwrap_err();
    }
}
