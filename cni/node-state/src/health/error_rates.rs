// SPDX-License-Identifier: Apache-2.0
//! Compares the growth of error counters with the configured thresholds. A counter's growth is its increase over the
//! readings of the last `per`. If the readings are further apart than `per`, the growth is scaled to `per`.
//!
//! A device becomes unhealthy as soon as the growth exceeds the threshold. The device becomes healthy again when the
//! growth over a whole `per` does not exceed the threshold.
//!
//! | value of a reading | growth |
//! |---|---|
//! | above the last value | the difference |
//! | below the last value: the counter was reset, or wrapped at 2^32 | the value, as in Prometheus' `rate()` |
//! | at the counter's maximum, as before: the counter stops there until a reset | none; counting restarts afterwards |
//! | missing, as for a device inside a pod in exclusive mode | none; the last state remains |

use daemon_conf::ErrorThreshold;
use rdma_netns::DeviceAddress;
use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

/// Smallest number of readings within a threshold's `per`.
const READINGS: u32 = 10;
/// Shortest interval between two readings.
const OFTEN: Duration = Duration::from_secs(1);
/// Longest interval between two readings. Kubelet learns of a burst of errors within this time.
const SELDOM: Duration = Duration::from_secs(30);

/// A reading of a port's counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// PCI function of the RDMA device.
    pub device: DeviceAddress,
    /// Name of the RDMA device.
    pub rdma: String,
    /// Number of the port, from 1.
    pub port: u32,
    /// Name of the counter's file.
    pub counter: String,
    /// Value of the counter.
    pub value: u64,
    /// Value at which the counter stops.
    pub maximum: u64,
}

/// The error counters of a node's devices over time.
#[derive(Debug, Default)]
pub(super) struct ErrorRates {
    thresholds: Vec<ErrorThreshold>,
    /// Time of each threshold's next reading.
    due: Vec<Instant>,
    ports: BTreeMap<Key, PortErrors>,
}

/// Threshold (by index), device, and number of the port.
type Key = (usize, DeviceAddress, u32);

/// State of one counter of a port.
#[derive(Debug, Default)]
struct PortErrors {
    last: Option<u64>,
    /// Times of recent readings, each with the growth since the first reading.
    readings: VecDeque<(Instant, u64)>,
    /// Reason why the counter makes the device unhealthy. `None`: it does not.
    fault: Option<String>,
    /// True while the counter is at its maximum.
    sticks: bool,
}

impl ErrorRates {
    /// Replaces the thresholds if they differ. Returns true if this ends a device's fault.
    pub(super) fn go_by(&mut self, thresholds: Vec<ErrorThreshold>, now: Instant) -> bool {
        if thresholds == self.thresholds {
            return false;
        }
        self.due = thresholds.iter().map(|_| now).collect();
        self.thresholds = thresholds;
        let before = std::mem::take(&mut self.ports);
        before.values().any(|it| it.fault.is_some())
    }

    /// Returns the time of the next reading. `None`: there is no threshold, and no counter is read.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.iter().min().copied()
    }

    /// Returns the indices of the thresholds whose counters are due at `now`, and schedules their next readings.
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

    /// Returns the name of the counter of the threshold with the index `place`.
    pub(super) fn counter(&self, place: usize) -> &str {
        let threshold = self.thresholds.get(place);
        threshold.map_or("", |it| it.counter.as_str())
    }

    /// Applies the readings at `now` to the thresholds in `due`. Returns true if a device's health changed.
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

    /// Removes all devices for which `is_there` returns false.
    pub(super) fn keep(&mut self, is_there: impl Fn(&DeviceAddress) -> bool) {
        self.ports.retain(|(_, device, _), _| is_there(device));
    }

    /// Returns the reason of the first exceeded threshold of the device. `None`: the device exceeds no threshold.
    pub(super) fn fault(&self, device: &DeviceAddress) -> Option<&str> {
        let mut own = self.ports.iter().filter(|((_, of, _), _)| of == device);
        own.find_map(|(_, it)| it.fault.as_deref())
    }
}

/// Returns the interval between two readings for a threshold with `per`.
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
                "{counter} of port {port} of {rdma} is {value}, its maximum: errors are not counted until it is \
                 reset (perfquery -R)"
            );
        }
        let stuck_before = std::mem::replace(&mut self.sticks, is_full);
        if is_full && (stuck_before || self.last.is_none()) {
            self.last = Some(*value);
            return;
        }
        if stuck_before {
            // restart counting: the growth is unknown while the counter is at its maximum
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
        // keep at least two readings, which are compared even if they are further apart than `per`
        while self.readings.len() > 2
            && let Some((at, _)) = self.readings.front()
            && now.saturating_duration_since(*at) > *per
        {
            self.readings.pop_front();
        }
        let (grown, watched) = self.recent_growth();
        let in_per = match watched > *per {
            true => grown as f64 * per.as_secs_f64() / watched.as_secs_f64(),
            false => grown as f64,
        };
        if in_per > *above as f64 {
            // keep the first reason: kubelet and the log would otherwise get a new reason with each reading
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

    /// Returns the growth over the stored readings, and the time between the first and the last stored reading.
    fn recent_growth(&self) -> (u64, Duration) {
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
