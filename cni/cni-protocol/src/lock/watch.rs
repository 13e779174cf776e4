// SPDX-License-Identifier: Apache-2.0
//! Observation of the process that has a lock for which this process waits.

use std::{
    error::Error,
    fmt,
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    time::{Duration, Instant},
};

use nix::libc::{major, minor};

/// Time before the first observation. Most waits end earlier, without an observation.
const FIRST_OBSERVATION: Duration = Duration::from_millis(100);

/// Interval between observations. The kernel's queue is fair: a process that releases the lock and requests it again is
/// queued after this process. So a process that has the lock in two successive observations had the lock all the time
/// between these observations.
const INTERVAL: Duration = Duration::from_secs(1);

/// Observes the holder of a lock while this process waits for the lock.
pub(super) struct Watch {
    file: Metadata,
    end: Instant,
    next: Instant,
    /// The last observed holder.
    last: Option<u32>,
    /// True if different observations had different holders.
    is_several: bool,
}

impl Watch {
    /// Returns a watch of the lock of `file` for a wait that starts now and lasts at most `limit`.
    pub(super) fn begin(file: Metadata, limit: Duration) -> Self {
        let now = Instant::now();
        Self {
            file,
            end: now + limit,
            next: now + FIRST_OBSERVATION.min(limit / 2),
            last: None,
            is_several: false,
        }
    }

    /// Returns the time until the next observation.
    pub(super) fn until_next(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Observes the holder. Returns true if the time limit has passed.
    pub(super) fn observe(&mut self) -> bool {
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        self.note(process(&locks, self.file.dev(), self.file.ino()));
        let now = Instant::now();
        self.next = (now + INTERVAL).min(self.end);
        now >= self.end
    }

    /// Records the observed `holder`. `None` proves nothing: the kernel prints `/proc/locks` page by page, and misses a
    /// line if an earlier line disappears meanwhile.
    fn note(&mut self, holder: Option<u32>) {
        self.is_several |= holder.is_some() && self.last.is_some() && holder != self.last;
        self.last = holder.or(self.last);
    }

    /// Returns the error that names the holder.
    pub(super) fn busy(self, limit: Duration) -> Busy {
        Busy {
            by: self.last.map(named),
            is_one: self.last.is_some() && !self.is_several,
            seconds: limit.as_secs(),
        }
    }
}

/// The error of a wait: other processes had the lock until the time limit.
#[derive(Debug)]
pub(super) struct Busy {
    /// The last observed holder, as text for messages. `None`: `/proc/locks` showed no holder in this PID namespace.
    by: Option<String>,
    /// True if an observation found a holder, and no observation found another holder.
    is_one: bool,
    seconds: u64,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.seconds;
        match (&self.by, self.is_one) {
            (Some(one), true) => write!(
                f,
                "{one} held the lock during the whole wait of {seconds} s"
            )?,
            (Some(last), false) => write!(
                f,
                "several processes held the lock in turn for {seconds} s, most recently {last}"
            )?,
            (None, _) => write!(
                f,
                "processes held the lock for {seconds} s, and /proc/locks did not show these processes"
            )?,
        }
        f.write_str("; try again")
    }
}

impl Error for Busy {}

/// Returns true if `error` or one of its sources means that one process had the lock during the whole wait. Another
/// wait would then probably fail too. Returns false if several processes had the lock in turn: another wait can
/// succeed.
pub fn is_kept(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let inner = error.downcast_ref().and_then(io::Error::get_ref);
        let busy = inner.and_then(|it| it.downcast_ref::<Busy>());
        if busy.is_some_and(|busy| busy.is_one) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Returns the process id `process` and the process's name, as text for messages.
fn named(process: u32) -> String {
    match fs::read_to_string(format!("/proc/{process}/comm")) {
        Ok(name) => format!("process {process} ({})", name.trim_end()),
        Err(_) => format!("process {process}"),
    }
}

/// Returns the process that has the lock of the file with `device` and `inode`. `locks` is the text of `/proc/locks`
/// (`lock_get_status()`, `fs/locks.c`): `1: FLOCK  ADVISORY  WRITE 4711 08:01:131074 0 EOF`. The line of a waiting
/// process has `->` after the number.
pub fn process(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let file = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let is_flock = fields.next()? == "FLOCK";
        let (process, locked_file) = (fields.nth(2)?, fields.next()?);
        (is_flock && locked_file == file).then(|| process.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_without_a_holder_has_no_meaning() {
        let file = fs::metadata("/").unwrap();
        for (observations, is_one) in [
            (vec![Some(7), None, Some(7)], true),
            (vec![None, Some(7)], true),
            (vec![Some(7), None, Some(8)], false),
            (vec![Some(7), Some(8), Some(7)], false),
            (vec![None], false),
        ] {
            let mut watch = Watch::begin(file.clone(), Duration::ZERO);
            observations.iter().for_each(|holder| watch.note(*holder));
            assert_eq!(
                watch.busy(Duration::ZERO).is_one,
                is_one,
                "{observations:?}"
            );
        }
    }

    #[test]
    fn an_unobserved_holder_is_not_reported_to_be_elsewhere() {
        let mut watch = Watch::begin(fs::metadata("/").unwrap(), Duration::ZERO);
        watch.note(None);
        assert_eq!(
            watch.busy(Duration::from_secs(30)).to_string(),
            "processes held the lock for 30 s, and /proc/locks did not show these processes; try again"
        );
    }

    #[test]
    fn a_waiting_process_is_no_lock_holder() {
        let locks = "1: POSIX  ADVISORY  WRITE 12 08:01:7 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 13 08:01:7 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 14 08:01:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 15 08:01:7 0 EOF\n";
        assert_eq!(process(locks, nix::libc::makedev(8, 1), 7), Some(15));
        assert_eq!(process(locks, nix::libc::makedev(8, 2), 7), None);
    }
}
