// SPDX-License-Identifier: Apache-2.0
//! Damps changes of one device's health. The damper reports the first observation at once, a later fault after
//! [`DOWN_AFTER`], and a recovery after [`UP_AFTER`]. A flapping device stays unhealthy until it has been up for the
//! hold ([`HOLD`]).

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Time for which a device must be down before the damper reports it as down. During a move, netdev and RDMA device
/// disappear for a moment.
pub const DOWN_AFTER: Duration = Duration::from_millis(300);
/// Time for which a device must be up before the damper reports it as up.
pub const UP_AFTER: Duration = Duration::from_millis(500);
/// Largest number of drops (changes from up to down) within [`WINDOW`] without flapping. With more drops, the device
/// flaps.
pub const DROPS: usize = 3;
/// Period in which the damper counts drops.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Hold: the time for which a flapping device must be up before the damper reports it as up. The hold doubles with each
/// further drop.
pub const HOLD: Duration = Duration::from_secs(10);
/// Upper limit of the hold ([`HOLD`]).
pub const LONGEST_HOLD: Duration = Duration::from_secs(160);
/// Time without a drop after which the device no longer counts as flapping. Its next hold is [`HOLD`] again.
pub const FORGIVEN: Duration = Duration::from_secs(600);

/// Observed state of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The device is usable.
    Up,
    /// The device is unusable.
    Down(Fault),
    /// The daemon cannot observe the device, for this reason. The last observed state counts as continuing.
    Unknown(String),
}

/// Reason why a device is unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Description of the fault.
    pub reason: String,
    /// True if a kernel event or a scheduled reading shows the end of the fault. False: the daemon must poll the
    /// device.
    pub end_is_reported: bool,
}

/// Health of one device as the daemon reports it to kubelet.
#[derive(Clone, Debug, Default)]
pub struct Damper {
    /// Reason why the device is reported as down. `None`: it is reported as up.
    reported: Option<String>,
    /// Last observation, and the time when its state began.
    observed: Option<(Observed, Instant)>,
    drops: VecDeque<Instant>,
    /// Present hold ([`HOLD`]); `None`: the device does not flap.
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
    /// The reported state does not change.
    None,
    /// The device is now reported as down.
    Down,
    /// The device is reported as up again.
    Up,
    /// The device flaps. The damper reports it as down until it has been up for this time.
    Held(Duration),
}

impl Damper {
    /// Returns the reason why the device is reported as down. `None`: it is reported as up.
    pub fn fault(&self) -> Option<&str> {
        self.reported.as_deref()
    }

    /// Returns the time by which the daemon must observe the device again if no event requires it earlier.
    pub fn deadline(&self) -> Option<Instant> {
        let (seen, since) = self.observed.as_ref()?;
        match (seen, &self.reported) {
            (Observed::Down(_), None) => Some(*since + DOWN_AFTER),
            (Observed::Up, Some(_)) => Some(*since + self.hold.unwrap_or(UP_AFTER)),
            _ => None,
        }
    }

    /// Applies the observation at the time `now`. A later call must not have an earlier `now`.
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
            // the first observation is reported without damping
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

    /// Counts a drop. Returns the hold ([`HOLD`]) if the device flaps.
    fn dropped(&mut self, now: Instant) -> Option<Duration> {
        let last = self.drops.back();
        if last.is_none_or(|last| now.saturating_duration_since(*last) >= FORGIVEN) {
            self.hold = None;
        }
        self.drops.push_back(now);
        let of_late = |at: &Instant| now.saturating_duration_since(*at) <= WINDOW;
        self.drops.retain(of_late);
        if self.drops.len() > DROPS + 1 {
            self.drops.pop_front(); // keep only the drops that count
        }
        self.hold = match self.hold {
            Some(hold) => Some((hold * 2).min(LONGEST_HOLD)),
            None => (self.drops.len() > DROPS).then_some(HOLD),
        };
        self.hold
    }

    /// Reports the observed state if it has lasted long enough. If the device is reported as down and is not held,
    /// replaces the reported reason at once.
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
