// SPDX-License-Identifier: Apache-2.0
//! Delay of this machine at present: a limit of wall-clock time is meaningful for the daemon only together with the
//! machine's own delay.

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

/// The pause of a round.
const PAUSE: Duration = Duration::from_millis(20);

/// Highest number of rounds from an event to the new list: the daemon receives the event, waits for further ones,
/// starts a thread, and writes the record and the list.
const ROUNDS: u32 = 5;

/// Does beside the daemon what a turn of it consists of, again and again: a pause, and a file that is
/// written, synchronised and renamed.
pub(crate) struct Yardstick {
    file: PathBuf,
    start: Instant,
    /// Begin of the present round, microseconds after `start`.
    begun: AtomicU64,
    /// Delay of the worst round since the last reading, microseconds.
    worst: AtomicU64,
    over: AtomicBool,
}

impl Yardstick {
    pub(crate) fn new(file: PathBuf) -> Self {
        Self {
            file,
            start: Instant::now(),
            begun: AtomicU64::new(0),
            worst: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).expect("a short test")
    }

    /// Returns the delay of the present round so far.
    fn late(&self) -> u64 {
        let pause = u64::try_from(PAUSE.as_micros()).expect("a short pause");
        let since = self.now().saturating_sub(self.begun.load(Ordering::SeqCst));
        since.saturating_sub(pause)
    }

    /// Goes on until [`is_over`](Self::is_over).
    pub(crate) fn measure(&self) {
        let new = self.file.with_extension("new");
        while !self.over.load(Ordering::SeqCst) {
            self.begun.store(self.now(), Ordering::SeqCst);
            thread::sleep(PAUSE);
            let mut file = File::create(&new).expect("made");
            file.write_all(&[0; 512]).expect("written");
            file.sync_data().expect("on the disk");
            fs::rename(&new, &self.file).expect("renamed");
            self.worst.fetch_max(self.late(), Ordering::SeqCst);
        }
    }

    pub(crate) fn is_over(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// Polls until `done`, or until `limit` is over, and what the machine was late meanwhile.
    pub(crate) fn within(&self, limit: Duration, mut done: impl FnMut() -> bool) -> bool {
        self.worst.store(0, Ordering::SeqCst);
        let since = Instant::now();
        loop {
            if done() {
                return true;
            }
            let late = self.worst.load(Ordering::SeqCst).max(self.late());
            if since.elapsed() > limit + ROUNDS * Duration::from_micros(late) {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}
