// SPDX-License-Identifier: Apache-2.0
//! Time without the machine's own delay. A limit that the product promises is of wall-clock time, and meaningful only
//! where the machine lets ready threads run.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Limit of a call that waits for no lock, and longer than such a call takes: a lock is waited for for 30 s
/// (`cni_protocol::lock::LIMIT`).
pub const WITHOUT_A_LOCK: Duration = Duration::from_secs(20);

/// The pause of a round.
const PAUSE: Duration = Duration::from_millis(20);

/// Highest number of rounds from an event to its effect: the daemon receives the event, waits for further ones, starts a
/// thread, and writes the record and the list.
const ROUNDS: u32 = 5;

/// Clock that does, beside the process under test, what a turn of that consists of, again and again: a pause, and a file
/// that is written, synchronised and renamed. Five times the delay of its worst round does not count.
#[derive(Debug)]
pub struct Stopwatch {
    rounds: Arc<Rounds>,
    /// Ends the rounds when it is dropped.
    going: Option<Sender<()>>,
    measuring: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Rounds {
    start: Instant,
    /// Begin of the present round, microseconds after `start`.
    begun: AtomicU64,
    /// Delay of the worst round, microseconds.
    worst: AtomicU64,
}

impl Stopwatch {
    /// Starts the clock.
    ///
    /// # Panics
    /// No temporary directory can be made, or no thread.
    pub fn start() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let rounds = Arc::new(Rounds {
            start: Instant::now(),
            begun: AtomicU64::new(0),
            worst: AtomicU64::new(0),
        });
        let (going, goes) = channel();
        let measuring = {
            let rounds = rounds.clone();
            thread::spawn(move || rounds.measure(directory.path(), &goes))
        };
        Self {
            rounds,
            going: Some(going),
            measuring: Some(measuring),
        }
    }

    /// Returns the time since the start, without what the machine was late.
    pub fn elapsed(&self) -> Duration {
        self.corrected(self.rounds.start.elapsed())
    }

    /// Returns `took`, a time that passed since the start, without what the machine was late.
    pub fn corrected(&self, took: Duration) -> Duration {
        let late = self.rounds.worst.load(Ordering::SeqCst);
        let late = Duration::from_micros(late.max(self.rounds.late()));
        took.saturating_sub(ROUNDS * late)
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        drop(self.going.take());
        if let Some(measuring) = self.measuring.take() {
            let _ = measuring.join();
        }
    }
}

impl Rounds {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).expect("a short test")
    }

    /// Returns the delay of the present round so far.
    fn late(&self) -> u64 {
        let pause = u64::try_from(PAUSE.as_micros()).expect("a short pause");
        let since = self.now().saturating_sub(self.begun.load(Ordering::SeqCst));
        since.saturating_sub(pause)
    }

    /// Goes on until the sender of `goes` is dropped.
    fn measure(&self, directory: &Path, goes: &Receiver<()>) {
        let [file, new] = ["file", "new"].map(|name| directory.join(name));
        loop {
            self.begun.store(self.now(), Ordering::SeqCst);
            if goes.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let mut written = File::create(&new).expect("made");
            written.write_all(&[0; 512]).expect("written");
            written.sync_data().expect("on the disk");
            fs::rename(&new, &file).expect("renamed");
            self.worst.fetch_max(self.late(), Ordering::SeqCst);
        }
    }
}

/// Polls until `done` or until `limit` is over, without what the machine was late; says which of both it was.
pub fn within(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let stopwatch = Stopwatch::start();
    loop {
        if done() {
            return true;
        }
        if stopwatch.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_the_test_counts_and_one_of_the_machine_does_not() {
        let counts = || {
            let stopwatch = Stopwatch::start();
            thread::sleep(Duration::from_millis(500));
            stopwatch.elapsed() > Duration::from_millis(250)
        };
        // this machine may be late itself
        assert!((0..20).any(|_| counts()));
        let stopwatch = Stopwatch::start();
        let late = 2_000_000;
        stopwatch.rounds.worst.store(late, Ordering::SeqCst);
        let took = ROUNDS * Duration::from_micros(late) + Duration::from_secs(1);
        assert!(stopwatch.corrected(took) <= Duration::from_secs(1));
    }

    #[test]
    fn what_does_not_happen_has_an_end() {
        assert!(!within(Duration::from_millis(50), || false));
        assert!(within(Duration::ZERO, || true));
    }
}
