// SPDX-License-Identifier: Apache-2.0
//! Who holds a lock that is waited for.

use std::{
    error::Error,
    fmt,
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    time::{Duration, Instant},
};

use nix::libc::{major, minor};

/// When it is first looked at who holds a lock that is waited for. Most are got before, so that nobody looks.
const FIRST_LOOK: Duration = Duration::from_millis(100);

/// How often it is looked at afterwards. Who waits is in a queue, and whoever has let go of the lock behind it: a holder
/// that is seen at two looks has had the lock all the time in between.
const LOOK: Duration = Duration::from_secs(1);

/// Looks at who holds a lock while it is waited for.
pub(super) struct Watch {
    of: Metadata,
    end: Instant,
    next: Instant,
    /// The process that was seen last.
    last: Option<u32>,
    /// Whether another one was seen before it.
    is_several: bool,
}

impl Watch {
    /// Of the lock of the file of `of`, which is waited for from now on, for `limit`.
    pub(super) fn begin(of: Metadata, limit: Duration) -> Self {
        let now = Instant::now();
        Self {
            of,
            end: now + limit,
            next: now + FIRST_LOOK.min(limit / 2),
            last: None,
            is_several: false,
        }
    }

    pub(super) fn until_look(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Looks. Tells whether the time is over.
    pub(super) fn look(&mut self) -> bool {
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        self.see(process(&locks, self.of.dev(), self.of.ino()));
        let now = Instant::now();
        self.next = (now + LOOK).min(self.end);
        now >= self.end
    }

    /// The look has seen that `holder` has it. None says nothing: the kernel tells all locks page by page, and while one
    /// before goes, a line can be missed.
    fn see(&mut self, holder: Option<u32>) {
        self.is_several |= holder.is_some() && self.last.is_some() && holder != self.last;
        self.last = holder.or(self.last);
    }

    /// What is to be told of who holds it.
    pub(super) fn told(self, limit: Duration) -> Busy {
        Busy {
            by: self.last.map(named),
            is_one: self.last.is_some() && !self.is_several,
            seconds: limit.as_secs(),
        }
    }
}

/// A lock that was waited for in vain.
#[derive(Debug)]
pub(super) struct Busy {
    /// Who had it last, for people; none: nobody that is seen here.
    by: Option<String>,
    /// Whether it was the same process all the time.
    is_one: bool,
    seconds: u64,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.seconds;
        match (&self.by, self.is_one) {
            (Some(one), true) => write!(f, "{one} has held it for all of the {seconds} s")?,
            (Some(last), false) => write!(
                f,
                "others have held it in turn for {seconds} s, the last of them {last}"
            )?,
            (None, _) => write!(
                f,
                "processes that are not seen here have held it for {seconds} s"
            )?,
        }
        f.write_str("; try again")
    }
}

impl Error for Busy {}

/// Whether `error` comes from a lock that one process had for all the time that it was waited for: so it keeps it.
/// Where several had it in turn, who waits once more can get it.
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

/// `process`, for people.
fn named(process: u32) -> String {
    match fs::read_to_string(format!("/proc/{process}/comm")) {
        Ok(name) => format!("process {process} ({})", name.trim_end()),
        Err(_) => format!("process {process}"),
    }
}

/// The process that has the lock, by the lines of `/proc/locks` (`lock_get_status()`, `fs/locks.c`):
/// `1: FLOCK  ADVISORY  WRITE 4711 08:01:131074 0 EOF`, and `->` before who waits.
pub fn process(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let file = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let is_it = fields.next()? == "FLOCK";
        let (process, of) = (fields.nth(2)?, fields.next()?);
        (is_it && of == file).then(|| process.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_sees_nobody_says_nothing() {
        let of = fs::metadata("/").unwrap();
        for (looks, is_one) in [
            (vec![Some(7), None, Some(7)], true),
            (vec![None, Some(7)], true),
            (vec![Some(7), None, Some(8)], false),
            (vec![Some(7), Some(8), Some(7)], false),
            (vec![None], false),
        ] {
            let mut watch = Watch::begin(of.clone(), Duration::ZERO);
            looks.iter().for_each(|holder| watch.see(*holder));
            assert_eq!(watch.told(Duration::ZERO).is_one, is_one, "{looks:?}");
        }
    }

    #[test]
    fn who_waits_is_no_holder() {
        let locks = "1: POSIX  ADVISORY  WRITE 12 08:01:7 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 13 08:01:7 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 14 08:01:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 15 08:01:7 0 EOF\n";
        assert_eq!(process(locks, nix::libc::makedev(8, 1), 7), Some(15));
        assert_eq!(process(locks, nix::libc::makedev(8, 2), 7), None);
    }
}
