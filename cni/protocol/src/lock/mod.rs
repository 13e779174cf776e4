// SPDX-License-Identifier: Apache-2.0
//! Locks on files: waited for with an end, by whoever may open the file, which is root alone.

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

/// How long a lock is waited for. Holders that are well have it for milliseconds, and for some seconds
/// when a node's pods start at once.
pub const LIMIT: Duration = Duration::from_secs(30);

/// How long after its start a verb waits for locks. Above is what kubelet allows the runtime for all of a
/// verb, two minutes (`runtimeRequestTimeout`), while a verb waits for several locks, one after the other:
/// a caller that was given up on would not be told who holds the lock.
pub const VERB_LIMIT: Duration = Duration::from_secs(60);

/// How long, whatever the verb's time, a lock is waited for that undoing needs: with less than that the devices of
/// an ADD that has failed late would stay in the pod for the moves of other pods.
pub const UNDO_LIMIT: Duration = Duration::from_secs(15);

/// How long a lock is waited for when the verb's time is over: who is well has let go of it by then.
const LEAST: Duration = Duration::from_secs(1);

/// How often a lock is asked for where no thread can wait for it.
const PAUSE: Duration = Duration::from_millis(10);

/// A lock that this process has on a file, until this is dropped.
///
/// It is given back by the call, not by closing the file: a child that another thread has just forked has
/// the file open too, until it is another program, and the lock belongs to all who have (`flock(2)`).
#[derive(Debug)]
pub struct Held(File);

impl Drop for Held {
    fn drop(&mut self) {
        // what cannot be unlocked is unlocked by the last close
        let _ = self.0.unlock();
    }
}

impl Deref for Held {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

/// The time that a verb has for all the locks that it waits for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    until: Instant,
}

impl Patience {
    /// That of a verb that starts now.
    pub fn of_verb() -> Self {
        Self::until(Instant::now() + VERB_LIMIT)
    }

    /// That of a verb whose time is over at `until`.
    pub fn until(until: Instant) -> Self {
        Self { until }
    }

    /// The same, with `least` from now on if that is longer.
    pub fn at_least(self, least: Duration) -> Self {
        Self::until(self.until.max(Instant::now() + least))
    }

    /// Waits for the lock of `file`, for [`LIMIT`] at most.
    ///
    /// # Errors
    /// As [`wait`].
    pub fn wait(self, file: File) -> io::Result<Held> {
        wait(file, self.left())
    }

    fn left(self) -> Duration {
        let left = self.until.saturating_duration_since(Instant::now());
        left.clamp(LEAST, LIMIT)
    }
}

/// Opens the lock file at `path`, and makes it if it is not there. A lock needs no more than that the
/// file can be opened: one that others may open, as earlier versions made some, is corrected.
///
/// # Errors
/// The system refuses it, or what is at `path` is no regular file ([`state_file`]).
pub fn open(path: &Path) -> io::Result<File> {
    let file = state_file::make(path, 0o600)?;
    protect(&file)?;
    Ok(file)
}

/// Leaves `file` to its owner.
///
/// # Errors
/// The system refuses it.
pub fn protect(file: &File) -> io::Result<()> {
    match file.metadata()?.mode() & 0o177 {
        0 => Ok(()),
        _ => file.set_permissions(Permissions::from_mode(0o600)),
    }
}

/// The lock of `file`, if nobody has it.
///
/// # Errors
/// The system's.
pub fn attempt(file: File) -> io::Result<Option<Held>> {
    Ok(takes(&file)?.then_some(file).map(Held))
}

/// Whether nobody had the lock of `file`, which has it now.
fn takes(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Waits for the lock of `file`, for `limit` at most.
///
/// # Errors
/// Of the kind `TimedOut`, naming who holds it, once `limit` is over ([`is_kept`]); else the system's.
pub fn wait(file: File, limit: Duration) -> io::Result<Held> {
    if takes(&file)? {
        return Ok(Held(file));
    }
    let mut watch = Watch::begin(file.metadata()?, limit);
    let locked = match in_queue(&file, &mut watch) {
        Some(locked) => locked?,
        None => again_and_again(&file, &mut watch)?,
    };
    match locked {
        true => Ok(Held(file)),
        false => Err(io::Error::new(io::ErrorKind::TimedOut, watch.told(limit))),
    }
}

/// Whether a thread has got the lock of `file` in the kernel's queue, which is fair, and has no end. None: there can
/// be no thread.
fn in_queue(file: &File, watch: &mut Watch) -> Option<io::Result<bool>> {
    let waiting = file.try_clone().ok()?;
    let (sender, receiver) = mpsc::sync_channel(0);
    let wait = move || {
        let locked = waiting.lock();
        // who comes too late lets go
        if sender.send(locked).is_err() {
            let _ = waiting.unlock();
        }
    };
    thread::Builder::new().spawn(wait).ok()?;
    loop {
        match receiver.recv_timeout(watch.until_look()) {
            Ok(locked) => return Some(locked.map(|()| true)),
            Err(RecvTimeoutError::Disconnected) => return Some(Ok(false)),
            Err(RecvTimeoutError::Timeout) if watch.look() => return Some(Ok(false)),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// The same without a queue.
fn again_and_again(file: &File, watch: &mut Watch) -> io::Result<bool> {
    while !takes(file)? {
        if watch.until_look().is_zero() && watch.look() {
            return Ok(false);
        }
        thread::sleep(PAUSE);
    }
    Ok(true)
}

/// Waits without an end for the lock of the file at `path`, which `open` opens or makes. The file is opened
/// anew if a holder before has removed or renamed it.
///
/// # Errors
/// Those of `open`; else the system's.
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

/// Whether `path` still leads to `file`, a lock's: its last holder may have removed it meanwhile.
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

    /// An error of whoever waits.
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
        let words = format!("{own} has held it for all of the 1 s; try again");
        assert_eq!(error.to_string(), words);
        assert!(is_kept(&Above(error)));
        // in time
        let waiting = thread::spawn(move || wait(open(&path).unwrap(), LIMIT));
        thread::sleep(Duration::from_millis(50));
        drop(held);
        waiting.join().unwrap().unwrap();
    }

    /// In a program of its own, that can map no thread's stack.
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

    /// This process has it, another one waits for it and gets it, and a third one waits in vain.
    #[test]
    fn who_had_a_lock_last_is_not_blamed_for_all_the_time() {
        const PATH: &str = "RDMA_TEST_NEXT";
        const NAME: &str = "lock::tests::who_had_a_lock_last_is_not_blamed_for_all_the_time";
        if let Some(path) = std::env::var_os(PATH) {
            let _held = wait(open(path.as_ref()).unwrap(), LIMIT).unwrap();
            io::stdin().read_to_end(&mut vec![]).unwrap();
            return;
        }
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
        let waiting = thread::spawn(move || wait(file, Duration::from_secs(2)).unwrap_err());
        thread::sleep(Duration::from_secs(1));
        drop(held);
        let error = waiting.join().unwrap();
        drop(next.stdin.take());
        assert!(next.wait().unwrap().success());
        let last = format!(
            "others have held it in turn for 2 s, the last of them process {} (",
            next.id()
        );
        assert!(error.to_string().starts_with(&last), "{error}");
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
        // SAFETY: a write and a read, which a forked child may do before it is another program
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
            let left = Patience::until(Instant::now() + Duration::from_secs(seconds)).left();
            left.as_secs_f64().round()
        };
        assert_eq!(
            [60, 31, 30, 10, 1, 0].map(left),
            [30., 30., 30., 10., 1., 1.]
        );
        let over = Instant::now().checked_sub(Duration::from_secs(5)).unwrap();
        assert_eq!(Patience::until(over).left(), LEAST);
        let more = |patience: Patience| patience.at_least(UNDO_LIMIT).left().as_secs_f64().round();
        assert_eq!(more(Patience::until(over)), UNDO_LIMIT.as_secs_f64());
        assert_eq!(more(Patience::of_verb()), LIMIT.as_secs_f64());
        let whole = Patience::of_verb().until - Instant::now();
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
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        open(&link).unwrap_err();
    }
}
