// SPDX-License-Identifier: Apache-2.0
//! Damps changes of one device's health: a fault is reported at once, recovery a little later, and a flapping device
//! stays unhealthy.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Time for which a device must be down before it is reported as down. During a move, netdev and RDMA device disappear
/// for a moment.
pub const DOWN_AFTER: Duration = Duration::from_millis(300);
/// Time for which a device must be up before it counts as up again.
pub const UP_AFTER: Duration = Duration::from_millis(500);
/// Number of drops within [`WINDOW`] that does not count as flapping; one more does.
pub const DROPS: usize = 3;
/// Time in which drops are counted.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Time for which a flapping device must be up before it is reported as up. The time doubles with each further failure.
pub const HOLD: Duration = Duration::from_secs(10);
/// Upper limit of the hold.
pub const LONGEST_HOLD: Duration = Duration::from_secs(160);
/// Time without a drop after which the hold starts at [`HOLD`] again.
pub const FORGIVEN: Duration = Duration::from_secs(600);

/// Observed state of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The device is usable.
    Up,
    /// The device is unusable.
    Down(Fault),
    /// The device cannot be observed, for this reason; its last state holds.
    Unknown(String),
}

/// Reason why a device is unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Description.
    pub reason: String,
    /// True if an event reports the end of the fault; otherwise the device must be polled.
    pub end_is_reported: bool,
}

/// Reported state of a device.
#[derive(Clone, Debug, Default)]
pub struct Damper {
    /// Reason while it is reported as down.
    reported: Option<String>,
    /// Last observation, and since when it holds.
    observed: Option<(Observed, Instant)>,
    /// Times of recent drops.
    drops: VecDeque<Instant>,
    /// Time for which a flapping device must be up.
    hold: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Observed {
    Up,
    Down(String),
}

/// Effect of an observation on the reported state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// No change.
    None,
    /// Now reported as down.
    Down,
    /// Reported as up again.
    Up,
    /// Flapping: reported as down until it has been up for this long.
    Held(Duration),
}

impl Damper {
    /// Returns the reason while the device is reported as down.
    pub fn fault(&self) -> Option<&str> {
        self.reported.as_deref()
    }

    /// Returns the time of the next necessary observation, if no event comes before.
    pub fn deadline(&self) -> Option<Instant> {
        let (seen, since) = self.observed.as_ref()?;
        match (seen, &self.reported) {
            (Observed::Down(_), None) => Some(*since + DOWN_AFTER),
            (Observed::Up, Some(_)) => Some(*since + self.hold.unwrap_or(UP_AFTER)),
            _ => None,
        }
    }

    /// Applies the observation at `now`, which never goes back.
    pub fn observe(&mut self, now: Instant, verdict: &Verdict) -> Change {
        let seen = match verdict {
            Verdict::Unknown(_) => return self.settle(now),
            Verdict::Up => Observed::Up,
            Verdict::Down(fault) => Observed::Down(fault.reason.clone()),
        };
        let before = self.observed.take();
        let since = match (&before, &seen) {
            (Some((Observed::Up, since)), Observed::Up) => *since,
            (Some((Observed::Down(_), since)), Observed::Down(_)) => *since,
            _ => now,
        };
        let dropped = matches!(
            (&before, &seen),
            (Some((Observed::Up, _)), Observed::Down(_))
        );
        if let (None, Observed::Down(reason)) = (&before, &seen) {
            // the first observation needs no damping
            self.reported = Some(reason.clone());
        }
        self.observed = Some((seen, since));
        match dropped.then(|| self.dropped(now)).flatten() {
            Some(hold) => {
                self.reported = Some(format!(
                    "the device went down more than {DROPS} times recently"
                ));
                Change::Held(hold)
            }
            None if before.is_none() && self.reported.is_some() => Change::Down,
            None => self.settle(now),
        }
    }

    /// Counts a drop. Returns the hold if the device flaps.
    fn dropped(&mut self, now: Instant) -> Option<Duration> {
        let last = self.drops.back();
        if last.is_none_or(|last| now.saturating_duration_since(*last) >= FORGIVEN) {
            self.hold = None;
        }
        self.drops.push_back(now);
        let of_late = |at: &Instant| now.saturating_duration_since(*at) <= WINDOW;
        self.drops.retain(of_late);
        if self.drops.len() > DROPS + 1 {
            self.drops.pop_front(); // no more are counted
        }
        self.hold = match self.hold {
            Some(hold) => Some((hold * 2).min(LONGEST_HOLD)),
            None => (self.drops.len() > DROPS).then_some(HOLD),
        };
        self.hold
    }

    /// Reports a state that has lasted long enough.
    fn settle(&mut self, now: Instant) -> Change {
        let Some((seen, since)) = &self.observed else {
            return Change::None;
        };
        let lasted = now.saturating_duration_since(*since);
        match (seen, &mut self.reported) {
            (Observed::Down(reason), None) if lasted >= DOWN_AFTER => {
                self.reported = Some(reason.clone());
                Change::Down
            }
            (Observed::Up, Some(_)) if lasted >= self.hold.unwrap_or(UP_AFTER) => {
                self.reported = None;
                Change::Up
            }
            (Observed::Down(reason), Some(reported))
                if self.hold.is_none() && reason != reported =>
            {
                reported.clone_from(reason);
                Change::None
            }
            _ => Change::None,
        }
    }
}

#[cfg(test)]
#[path = "damper_tests.rs"]
mod tests;
