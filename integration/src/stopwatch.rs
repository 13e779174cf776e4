// SPDX-License-Identifier: Apache-2.0
//! Time without the machine's own delays. The project's time limits are wall-clock times, which a test can check only
//! on a machine that runs ready threads promptly.

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

/// Time limit for a call that waits for no lock. Such a call takes less time. Waiting for a lock alone takes 30 s
/// (`cni_protocol::lock::LIMIT`).
pub const WITHOUT_A_LOCK: Duration = Duration::from_secs(20);

/// Duration of the pause in a round.
const PAUSE: Duration = Duration::from_millis(20);

/// Maximum delay of the work between an event and its effect, in delays of the worst round: the daemon receives the
/// event, waits for further events, starts a thread, and writes the record and the list.
const ROUNDS: u32 = 5;

/// Clock that measures the machine's delay. While the process under test runs, the clock repeats rounds. A round has a
/// pause, and a file that the clock writes, syncs and renames. The clock subtracts the worst round's delay, times
/// `ROUNDS`.
#[derive(Debug)]
pub struct Stopwatch {
    rounds: Arc<Rounds>,
    /// The rounds end when this sender is dropped.
    going: Option<Sender<()>>,
    measuring: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Rounds {
    start: Instant,
    /// Start of the present round, in microseconds after `start`.
    begun: AtomicU64,
    /// Delay of the worst round, in microseconds.
    worst: AtomicU64,
}

impl Stopwatch {
    /// Starts the clock.
    ///
    /// # Panics
    /// No temporary directory or no thread can be made.
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

    /// Returns the time since the start, without the machine's delay.
    pub fn elapsed(&self) -> Duration {
        self.corrected(self.rounds.start.elapsed())
    }

    /// Returns `took`, a time that has passed since the start, without the machine's delay.
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

    /// Repeats rounds until the sender of `goes` is dropped.
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

/// Polls until `done` returns true, or until `limit` has passed without the machine's delay. Returns true in the first
/// case.
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
        // several tries, because this machine itself may be late
        assert!((0..20).any(|_| counts()));
        let stopwatch = Stopwatch::start();
        let late = 2_000_000;
        stopwatch.rounds.worst.store(late, Ordering::SeqCst);
        let took = ROUNDS * Duration::from_micros(late) + Duration::from_secs(1);
        assert!(stopwatch.corrected(took) <= Duration::from_secs(1));
    }

    #[test]
    fn waiting_has_an_end() {
        assert!(!within(Duration::from_millis(50), || false));
        assert!(within(Duration::ZERO, || true));
    }
}
