// SPDX-License-Identifier: Apache-2.0
//! Whether error counters grow faster than their thresholds allow: the rule.
//!
//! What a counter grew by is summed up over the readings of the last `per`, and over more only where a look takes longer:
//! then it is what it comes to in `per`. So the device is told as soon as the threshold is exceeded, and is well again
//! when `per` was watched in whole and was below.
//!
//! | a reading | counts as |
//! |---|---|
//! | more than before | the difference |
//! | less than before: it was reset, or began anew at 2^32 | the value, as Prometheus' `rate()` has it |
//! | its maximum, as before: it sticks there until it is reset | nothing; what was known last holds, and counting begins anew after it |
//! | none, as that of a device inside a pod in exclusive mode | nothing; what was known last holds |

use crate::conf::ErrorThreshold;
use rdma_netns::DeviceAddress;
use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

/// So many times a counter is read in its threshold's `per`.
const READINGS: u32 = 10;
/// No counter is read more often.
const OFTEN: Duration = Duration::from_secs(1);
/// Each is read so often at least: of a burst of errors kubelet is to hear soon.
const SELDOM: Duration = Duration::from_secs(30);

/// A counter of a port, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Whose it is.
    pub(crate) device: DeviceAddress,
    /// Name of the RDMA device.
    pub(crate) rdma: String,
    /// From 1.
    pub(crate) port: u32,
    /// Its name.
    pub(crate) counter: String,
    /// How many errors there were.
    pub(crate) value: u64,
    /// The value at which it sticks.
    pub(crate) maximum: u64,
}

/// The error counters of a node's devices over time.
#[derive(Debug, Default)]
pub(super) struct ErrorRates {
    thresholds: Vec<ErrorThreshold>,
    /// When each is to be read.
    due: Vec<Instant>,
    ports: BTreeMap<Key, PortErrors>,
}

/// The first is the threshold's place.
type Key = (usize, DeviceAddress, u32);

/// What is known of a counter of a port.
#[derive(Debug, Default)]
struct PortErrors {
    last: Option<u64>,
    /// When it was read of late, and what it had grown by then since the first reading.
    readings: VecDeque<(Instant, u64)>,
    /// Why the device cannot be used, while it cannot.
    fault: Option<String>,
    /// Whether it sticks at its maximum.
    sticks: bool,
}

impl ErrorRates {
    /// Goes by these thresholds from now on. Whether a device was unhealthy by one of those before.
    pub(super) fn go_by(&mut self, thresholds: Vec<ErrorThreshold>, now: Instant) -> bool {
        if thresholds == self.thresholds {
            return false;
        }
        self.due = thresholds.iter().map(|_| now).collect();
        self.thresholds = thresholds;
        let before = std::mem::take(&mut self.ports);
        before.values().any(|it| it.fault.is_some())
    }

    /// When the next counter is to be read; none: there is nothing to read.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.iter().min().copied()
    }

    /// The places of the thresholds whose counters are to be read at `now`.
    pub(super) fn due(&mut self, now: Instant) -> Vec<usize> {
        let all = self.thresholds.iter().zip(&mut self.due).enumerate();
        all.filter_map(|(place, (threshold, due))| {
            (*due <= now).then(|| {
                *due = now + interval(threshold.per);
                place
            })
        })
        .collect()
    }

    /// The counter of the threshold at `place`.
    pub(super) fn counter(&self, place: usize) -> &str {
        let threshold = self.thresholds.get(place);
        threshold.map_or("", |it| it.counter.as_str())
    }

    /// Takes in what was read at `now` for the thresholds `due`. Whether a device is well now that was not, or the
    /// other way round.
    pub(super) fn take(&mut self, now: Instant, due: &[usize], readings: &[Reading]) -> bool {
        let mut is_news = false;
        for place in due {
            let Some(threshold) = self.thresholds.get(*place) else {
                continue;
            };
            for reading in readings.iter().filter(|it| it.counter == threshold.counter) {
                let key = (*place, reading.device.clone(), reading.port);
                let port = self.ports.entry(key).or_default();
                let was_well = port.fault.is_none();
                port.take(now, threshold, reading);
                is_news |= was_well != port.fault.is_none();
            }
        }
        is_news
    }

    /// Forgets devices that are not there any more.
    pub(super) fn keep(&mut self, is_there: impl Fn(&DeviceAddress) -> bool) {
        self.ports.retain(|(_, device, _), _| is_there(device));
    }

    /// Why the device cannot be used, by the first of the thresholds that is exceeded.
    pub(super) fn fault(&self, device: &DeviceAddress) -> Option<&str> {
        let mut own = self.ports.iter().filter(|((_, of, _), _)| of == device);
        own.find_map(|(_, it)| it.fault.as_deref())
    }
}

/// From one reading to the next.
fn interval(per: Duration) -> Duration {
    (per / READINGS).clamp(OFTEN, SELDOM)
}

impl PortErrors {
    fn take(&mut self, now: Instant, threshold: &ErrorThreshold, reading: &Reading) {
        let Reading {
            rdma,
            port,
            counter,
            value,
            maximum,
            ..
        } = reading;
        let is_full = value == maximum;
        if is_full && !self.sticks {
            log::warn!(
                "{counter} of port {port} of {rdma} is {value}, its maximum, and counts no more until it is \
                 reset (perfquery -R)"
            );
        }
        let stuck_before = std::mem::replace(&mut self.sticks, is_full);
        if is_full && (stuck_before || self.last.is_none()) {
            self.last = Some(*value);
            return;
        }
        if stuck_before {
            // how much it would have grown meanwhile nobody knows
            self.last = None;
            self.readings.clear();
        }
        let grown = match self.last.replace(*value) {
            None => 0,
            Some(last) if *value >= last => value - last,
            Some(_) => *value,
        };
        let so_far = self.readings.back().map_or(0, |(_, grown)| *grown);
        self.readings.push_back((now, so_far.saturating_add(grown)));
        let ErrorThreshold { above, per, .. } = threshold;
        // where a look takes longer than that, the last two are compared all the same
        while self.readings.len() > 2
            && let Some((at, _)) = self.readings.front()
            && now.saturating_duration_since(*at) > *per
        {
            self.readings.pop_front();
        }
        let (grown, watched) = self.of_late();
        let in_per = match watched > *per {
            true => grown as f64 * per.as_secs_f64() / watched.as_secs_f64(),
            false => grown as f64,
        };
        if in_per > *above as f64 {
            // what is told does not change with each reading
            self.fault.get_or_insert_with(|| {
                format!(
                    "{counter} of port {port} of {rdma} grew by {grown} in {} s; more than {above} in {} s is \
                     unhealthy ({})",
                    watched.as_secs_f64().round(),
                    per.as_secs(),
                    threshold.place
                )
            });
        } else if watched + 2 * interval(*per) >= *per {
            self.fault = None;
        }
    }

    /// What it grew by over the readings that are kept, and their time.
    fn of_late(&self) -> (u64, Duration) {
        match (self.readings.front(), self.readings.back()) {
            (Some((begin, before)), Some((end, after))) => {
                (after - before, end.saturating_duration_since(*begin))
            }
            _ => (0, Duration::ZERO),
        }
    }
}

#[cfg(test)]
#[path = "error_rates_tests.rs"]
mod tests;
