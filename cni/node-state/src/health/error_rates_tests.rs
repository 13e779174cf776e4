// SPDX-License-Identifier: Apache-2.0
use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MAXIMUM: u64 = 65_535;

/// One device with one port and one threshold: more than 10 errors in 60 s.
struct Port {
    rates: ErrorRates,
    now: Instant,
    value: u64,
}

impl Port {
    fn new() -> Self {
        let mut port = Self {
            rates: ErrorRates::default(),
            now: Instant::now(),
            value: 1000,
        };
        assert!(!port.rates.go_by(vec![threshold(10, 60)], port.now));
        port.reads(0);
        port
    }

    /// Lets the counter grow by `errors`, and reads it when due. Returns true if the health
    /// changed.
    fn reads(&mut self, errors: u64) -> bool {
        self.value += errors;
        self.is(self.value)
    }

    fn is(&mut self, value: u64) -> bool {
        self.value = value;
        self.now = self.rates.next().expect("a time");
        let due = self.rates.due(self.now);
        assert_eq!(due, [0]);
        let readings = [reading(value)];
        self.rates.take(self.now, &due, &readings)
    }

    /// Lets the counter grow by `errors`, and reads it `seconds` after the last reading.
    fn reads_late(&mut self, seconds: u32, errors: u64) {
        self.now += seconds * SECOND;
        self.value += errors;
        let due = self.rates.due(self.now);
        self.rates.take(self.now, &due, &[reading(self.value)]);
    }

    /// Makes `readings` readings without growth.
    fn quiet(&mut self, readings: usize) {
        for _ in 0..readings {
            self.reads(0);
        }
    }

    fn fault(&self) -> Option<&str> {
        self.rates.fault(&address())
    }
}

fn threshold(above: u64, seconds: u64) -> ErrorThreshold {
    ErrorThreshold {
        place: "errors[0]".into(),
        counter: "symbol_error".into(),
        above,
        per: Duration::from_secs(seconds),
    }
}

fn address() -> DeviceAddress {
    DeviceAddress::try_from("0000:3b:00.0".to_owned()).expect("an address")
}

fn reading(value: u64) -> Reading {
    Reading {
        device: address(),
        rdma: "mlx5_0".into(),
        port: 1,
        counter: "symbol_error".into(),
        value,
        maximum: MAXIMUM,
    }
}

#[test]
fn errors_before_the_first_reading_do_not_count() {
    let mut port = Port::new();
    port.quiet(20);
    assert_eq!(port.fault(), None);
}

#[test]
fn a_threshold_is_exceeded_at_once_and_kept_for_its_time() {
    let mut port = Port::new();
    port.quiet(20);
    assert!(!port.reads(10), "as many as are tolerated");
    port.quiet(20);
    assert!(port.reads(11));
    let reason = "symbol_error of port 1 of mlx5_0 grew by 11 in 60 s; more than 10 in 60 s is unhealthy \
                  (errors[0])";
    assert_eq!(port.fault(), Some(reason));
    let began = port.now;
    assert!(!port.reads(5), "it is reported once");
    assert_eq!(port.fault(), Some(reason));
    while port.fault().is_some() {
        port.reads(0);
    }
    assert_eq!(port.now - began, 60 * SECOND);
}

#[test]
fn a_slow_rate_is_tolerated_for_ever_and_a_fast_one_never_forgiven() {
    let mut port = Port::new();
    for _ in 0..100 {
        port.reads(1);
        assert_eq!(port.fault(), None);
    }
    port.quiet(11);
    let mut changes = 0;
    for _ in 0..100 {
        changes += usize::from(port.reads(2));
    }
    assert_eq!((changes, port.fault().is_some()), (1, true));
}

#[test]
fn a_reset_counts_what_came_after_it() {
    let mut port = Port::new();
    port.reads(4);
    assert!(!port.is(6), "4 before, 6 after");
    assert!(port.is(7), "and one more");
}

#[test]
fn a_counter_that_begins_anew_is_not_millions_of_errors() {
    let mut port = Port::new();
    port.is(5);
    assert_eq!(port.fault(), None);
    port.quiet(11);
    assert_eq!(port.fault(), None);
}

#[test]
fn a_counter_at_its_maximum_proves_nothing_until_it_is_reset() {
    let mut port = Port::new();
    assert!(port.is(MAXIMUM), "on its way there it grew");
    port.quiet(50);
    assert!(port.fault().is_some(), "its end is unknown");
    port.is(0);
    port.quiet(9);
    assert_eq!(port.fault(), None);
    // the first reading is at the counter's maximum
    let mut port = Port::new();
    port.rates = ErrorRates::default();
    port.rates.go_by(vec![threshold(0, 60)], port.now);
    port.is(MAXIMUM);
    port.quiet(20);
    assert_eq!(port.fault(), None);
    port.is(3);
    assert!(port.reads(1), "it was reset, and counts again");
}

#[test]
fn an_unreadable_counter_keeps_its_state() {
    let mut port = Port::new();
    port.reads(100);
    let reason = port.fault().map(str::to_owned);
    assert!(reason.is_some());
    for _ in 0..50 {
        port.now = port.rates.next().expect("a time");
        let due = port.rates.due(port.now);
        assert!(!port.rates.take(port.now, &due, &[]));
    }
    assert_eq!(port.fault(), reason.as_deref());
    // after missing values, the time of these 1,000 errors is unknown: the fault ends when the growth over a whole
    // `per` does not exceed the threshold
    assert!(!port.reads(1_000));
    port.quiet(5);
    assert!(port.fault().is_some(), "too soon");
    port.quiet(5);
    assert_eq!(port.fault(), None);
    // a device that disappeared has no fault any more
    port.reads(100);
    port.rates.keep(|_| false);
    assert_eq!(port.fault(), None);
}

#[test]
fn other_thresholds_begin_anew() {
    let mut port = Port::new();
    port.reads(100);
    let now = port.now;
    assert!(!port.rates.go_by(vec![threshold(10, 60)], now), "the same");
    assert!(port.fault().is_some());
    assert!(port.rates.go_by(vec![threshold(10, 30)], now));
    assert_eq!((port.fault(), port.rates.next()), (None, Some(now)));
    assert!(!port.rates.go_by(vec![], now));
    assert_eq!(port.rates.next(), None, "nothing is read");
}

#[test]
fn each_is_read_at_its_own_interval() {
    let now = Instant::now();
    let mut rates = ErrorRates::default();
    rates.go_by([10, 60, 3600].map(|per| threshold(10, per)).into(), now);
    assert_eq!(rates.due(now), [0, 1, 2]);
    let mut read = [1, 1, 1];
    while let Some(next) = rates.next().filter(|at| *at <= now + 60 * SECOND) {
        for place in rates.due(next) {
            read[place] += 1;
        }
    }
    assert_eq!(read, [61, 11, 3]);
}

/// The readings are further apart than `per`, because another NIC's firmware does not answer.
#[test]
fn readings_further_apart_than_per_are_scaled() {
    let mut port = Port::new();
    port.reads_late(150, 20);
    assert_eq!(port.fault(), None, "8 in 60 s");
    port.reads_late(150, 40);
    let reason = port.fault().expect("16 in 60 s");
    assert!(reason.contains("grew by 40 in 150 s"), "{reason}");
    port.reads_late(150, 0);
    assert_eq!(port.fault(), None);
}
