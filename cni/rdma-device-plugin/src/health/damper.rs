// SPDX-License-Identifier: Apache-2.0
//! One device's health over time: told at once when it goes, a little later when it is back, and
//! not at all while it comes and goes.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// A device has to be down this long to count as down: a move makes its netdev and its RDMA
/// device anew.
pub const DOWN_AFTER: Duration = Duration::from_millis(300);
/// A device has to be up this long to count as up again.
pub const UP_AFTER: Duration = Duration::from_millis(500);
/// So many times in [`WINDOW`] a device may go down; with one more it flaps.
pub const DROPS: usize = 3;
/// The time in which drops are counted.
pub const WINDOW: Duration = Duration::from_secs(60);
/// A device that flaps has to be up this long; twice as long each time it goes down again.
pub const HOLD: Duration = Duration::from_secs(10);
/// But never longer than this.
pub const LONGEST_HOLD: Duration = Duration::from_secs(160);
/// After so long without a drop, the next hold is a short one again.
pub const FORGIVEN: Duration = Duration::from_secs(600);

/// What is known of a device at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It can be used.
    Up,
    /// It cannot.
    Down(Fault),
    /// It cannot be seen, and why: what was known last holds.
    Unknown(String),
}

/// Why a device cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// In words.
    pub reason: String,
    /// Whether an event tells when it is over; else one has to look.
    pub end_is_told: bool,
}

/// A device's state, as it is said to kubelet.
#[derive(Clone, Debug, Default)]
pub struct Damper {
    /// The reason, while it is said to be down.
    said: Option<String>,
    /// What was seen last, and since when.
    seen: Option<(Seen, Instant)>,
    /// When it went down, of late.
    drops: VecDeque<Instant>,
    /// How long it must be up, while it flaps.
    hold: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Up,
    Down(String),
}

/// What became of a look at a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// What is said is as before.
    None,
    /// It is said to be down now.
    Down,
    /// It is said to be up again.
    Up,
    /// It flaps: it is said to be down until it has been up for this long.
    Held(Duration),
}

impl Damper {
    /// Why it is said to be down, if it is.
    pub fn fault(&self) -> Option<&str> {
        self.said.as_deref()
    }

    /// When to look again, if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        let (seen, since) = self.seen.as_ref()?;
        match (seen, &self.said) {
            (Seen::Down(_), None) => Some(*since + DOWN_AFTER),
            (Seen::Up, Some(_)) => Some(*since + self.hold.unwrap_or(UP_AFTER)),
            _ => None,
        }
    }

    /// Takes in what was seen at `now`, which is never before the last time.
    pub fn look(&mut self, now: Instant, verdict: &Verdict) -> Change {
        let seen = match verdict {
            Verdict::Unknown(_) => return self.say(now),
            Verdict::Up => Seen::Up,
            Verdict::Down(fault) => Seen::Down(fault.reason.clone()),
        };
        let before = self.seen.take();
        let since = match (&before, &seen) {
            (Some((Seen::Up, since)), Seen::Up) => *since,
            (Some((Seen::Down(_), since)), Seen::Down(_)) => *since,
            _ => now,
        };
        let dropped = matches!((&before, &seen), (Some((Seen::Up, _)), Seen::Down(_)));
        if let (None, Seen::Down(reason)) = (&before, &seen) {
            // it is news to nobody yet
            self.said = Some(reason.clone());
        }
        self.seen = Some((seen, since));
        match dropped.then(|| self.dropped(now)).flatten() {
            Some(hold) => {
                self.said = Some(format!("it went down more than {DROPS} times of late"));
                Change::Held(hold)
            }
            None if before.is_none() && self.said.is_some() => Change::Down,
            None => self.say(now),
        }
    }

    /// Counts a drop; how long the device must be up if it flaps by now.
    fn dropped(&mut self, now: Instant) -> Option<Duration> {
        let last = self.drops.back();
        if last.is_none_or(|last| now.saturating_duration_since(*last) >= FORGIVEN) {
            self.hold = None;
        }
        self.drops.push_back(now);
        let of_late = |at: &Instant| now.saturating_duration_since(*at) <= WINDOW;
        self.drops.retain(of_late);
        if self.drops.len() > DROPS + 1 {
            self.drops.pop_front(); // more are not counted
        }
        self.hold = match self.hold {
            Some(hold) => Some((hold * 2).min(LONGEST_HOLD)),
            None => (self.drops.len() > DROPS).then_some(HOLD),
        };
        self.hold
    }

    /// Says what has been so for long enough.
    fn say(&mut self, now: Instant) -> Change {
        let Some((seen, since)) = &self.seen else {
            return Change::None;
        };
        let lasted = now.saturating_duration_since(*since);
        match (seen, &mut self.said) {
            (Seen::Down(reason), None) if lasted >= DOWN_AFTER => {
                self.said = Some(reason.clone());
                Change::Down
            }
            (Seen::Up, Some(_)) if lasted >= self.hold.unwrap_or(UP_AFTER) => {
                self.said = None;
                Change::Up
            }
            (Seen::Down(reason), Some(said)) if self.hold.is_none() && reason != said => {
                said.clone_from(reason);
                Change::None
            }
            _ => Change::None,
        }
    }
}

#[cfg(test)]
#[path = "damper_tests.rs"]
mod tests;
