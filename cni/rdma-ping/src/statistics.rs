// SPDX-License-Identifier: Apache-2.0
//! Figures of one pair of rails.

use serde::Serialize;
use std::{fmt, time::Duration};

/// Figures of answer times, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Times {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Times {
    /// Returns the figures of `times`, or `None` if there was no answer.
    pub(crate) fn of(times: &[Duration]) -> Option<Self> {
        let mut times = times.to_vec();
        times.sort();
        // the smallest time that at least `percent` of the times do not exceed
        let at = |percent: usize| {
            let rank = (times.len() * percent).div_ceil(100).max(1);
            milliseconds(times[rank - 1])
        };
        (!times.is_empty()).then(|| Self {
            min: at(0),
            median: at(50),
            p99: at(99),
            max: at(100),
        })
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            min,
            median,
            p99,
            max,
        } = self;
        write!(
            f,
            "min/median/p99/max {min:.2}/{median:.2}/{p99:.2}/{max:.2} ms"
        )
    }
}

/// Returns the time in milliseconds, with microseconds after the decimal point.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_occurred() {
        let times = |numbers: &[u64]| {
            let times: Vec<_> = numbers
                .iter()
                .map(|it| Duration::from_millis(*it))
                .collect();
            Times::of(&times).map(|it| (it.min, it.median, it.p99, it.max))
        };
        assert_eq!(times(&[]), None);
        assert_eq!(times(&[7]), Some((7.0, 7.0, 7.0, 7.0)));
        assert_eq!(times(&[3, 1, 2, 4]), Some((1.0, 2.0, 4.0, 4.0)));
        let hundred: Vec<u64> = (1..=200).collect();
        assert_eq!(times(&hundred), Some((1.0, 100.0, 198.0, 200.0)));
    }
}
