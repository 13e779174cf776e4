// SPDX-License-Identifier: Apache-2.0
use super::*;

fn down() -> Verdict {
    Verdict::Down(Fault {
        reason: "no carrier".into(),
        end_is_reported: true,
    })
}

/// A device that the test observes at each change and at the damper's deadlines.
struct Device {
    damper: Damper,
    now: Instant,
    /// Changes of the reported state: the time, and true if the device is down.
    reported: Vec<(Instant, bool)>,
}

impl Device {
    fn new(verdict: &Verdict) -> Self {
        let mut device = Self {
            damper: Damper::default(),
            now: Instant::now(),
            reported: Vec::new(),
        };
        device.observe(verdict);
        device
    }

    fn observe(&mut self, verdict: &Verdict) -> Change {
        let change = self.damper.observe(self.now, verdict);
        let is_down = self.damper.fault().is_some();
        if self
            .reported
            .last()
            .is_none_or(|(_, reported)| *reported != is_down)
        {
            self.reported.push((self.now, is_down));
        }
        change
    }

    /// Keeps the device in the state `verdict` for `lasting`.
    fn is(&mut self, verdict: &Verdict, lasting: Duration) {
        self.observe(verdict);
        let end = self.now + lasting;
        while let Some(deadline) = self.damper.deadline().filter(|at| *at <= end) {
            assert!(deadline > self.now, "an observation without effect");
            self.now = deadline;
            self.observe(verdict);
        }
        self.now = end;
    }

    fn is_down(&self) -> bool {
        self.damper.fault().is_some()
    }

    /// Returns the largest number of reported changes in any minute.
    fn busiest_minute(&self) -> usize {
        let within = |from: Instant| {
            let minute = from..from + Duration::from_secs(60);
            let changes = self.reported.iter().skip(1);
            changes.filter(|(at, _)| minute.contains(at)).count()
        };
        let minutes = self.reported.iter().map(|(at, _)| within(*at));
        minutes.max().unwrap_or(0)
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_device_that_is_down_at_first_is_reported_at_once() {
    assert!(Device::new(&down()).is_down());
    assert!(!Device::new(&Verdict::Up).is_down());
    assert!(!Device::new(&Verdict::Unknown("not seen".into())).is_down());
}

#[test]
fn down_and_up_are_reported_within_a_second() {
    let mut device = Device::new(&Verdict::Up);
    device.is(&Verdict::Up, MINUTE);
    device.is(&down(), Duration::from_secs(1));
    assert!(device.is_down());
    device.is(&Verdict::Up, UP_AFTER - MILLISECOND);
    assert!(device.is_down());
    device.is(&Verdict::Up, Duration::from_secs(1) - UP_AFTER);
    assert!(!device.is_down());
    assert_eq!(device.damper.deadline(), None);
}

#[test]
fn a_moment_of_a_move_is_not_reported() {
    let mut device = Device::new(&Verdict::Up);
    device.is(&down(), DOWN_AFTER - MILLISECOND);
    device.is(&Verdict::Up, MINUTE);
    assert_eq!(device.reported.len(), 1);
}

#[test]
fn an_unobservable_device_keeps_its_state() {
    let unknown = Verdict::Unknown("in a pod".into());
    for (known, is_down) in [(Verdict::Up, false), (down(), true)] {
        let mut device = Device::new(&known);
        device.is(&unknown, MINUTE);
        assert_eq!(device.is_down(), is_down);
    }
    // an unknown state during a fault does not restart the fault's time
    let mut device = Device::new(&Verdict::Up);
    device.observe(&down());
    device.is(&unknown, Duration::from_secs(1));
    assert!(device.is_down());
}

#[test]
fn a_device_that_flaps_is_held_and_longer_each_time() {
    let mut device = Device::new(&Verdict::Up);
    for _ in 0..DROPS {
        device.is(&down(), Duration::from_secs(1));
        device.is(&Verdict::Up, Duration::from_secs(2));
    }
    assert!(!device.is_down());
    let mut expected = HOLD;
    for _ in 0..6 {
        assert_eq!(device.observe(&down()), Change::Held(expected));
        assert!(device.is_down(), "it is held at once");
        device.is(&down(), Duration::from_secs(1));
        device.is(&Verdict::Up, expected - MILLISECOND);
        assert!(device.is_down());
        device.is(&Verdict::Up, MILLISECOND * 2);
        assert!(!device.is_down(), "not free after {expected:?}");
        expected = (expected * 2).min(LONGEST_HOLD);
    }
    device.is(&Verdict::Up, FORGIVEN);
    device.is(&down(), Duration::from_secs(1));
    device.is(&Verdict::Up, UP_AFTER);
    device.observe(&Verdict::Up);
    assert!(!device.is_down(), "it was not forgiven");
}

#[test]
fn another_reason_replaces_the_reported_one() {
    let mut device = Device::new(&down());
    let other = Verdict::Down(Fault {
        reason: "no RDMA device".into(),
        end_is_reported: true,
    });
    device.observe(&other);
    assert_eq!(device.damper.fault(), Some("no RDMA device"));
}

/// xorshift64
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[test]
fn random_changes_are_reported_rarely_and_the_last_state_correctly() {
    // the most changes in a minute occur if the device goes down as soon as its hold has ended
    const MOST: usize = 12;
    let mut worst = 0;
    for seed in 1..=400 {
        let mut random = Random(seed * 0x9e37_79b9);
        let mut device = Device::new(&Verdict::Up);
        let scale = [10, 400, 2_000, 6_000, 20_000][(seed % 5) as usize];
        let mut last = Verdict::Up;
        for _ in 0..300 {
            last = match random.below(9) {
                0..4 => Verdict::Up,
                4..8 => down(),
                _ => Verdict::Unknown("in a pod".into()),
            };
            device.is(&last, MILLISECOND * (random.below(scale) as u32));
        }
        worst = worst.max(device.busiest_minute());
        if let Verdict::Unknown(_) = last {
            last = down();
        }
        device.is(&last, LONGEST_HOLD + UP_AFTER);
        assert_eq!(device.is_down(), last == down(), "seed {seed}");
        assert_eq!(device.damper.deadline(), None, "seed {seed}");
    }
    let mut device = Device::new(&Verdict::Up);
    while device.reported.len() < 60 {
        device.is(&down(), DOWN_AFTER);
        while device.is_down() {
            device.is(&Verdict::Up, MILLISECOND * 100);
        }
    }
    worst = worst.max(device.busiest_minute());
    assert!((4..=MOST).contains(&worst), "{worst} changes in a minute");
}
