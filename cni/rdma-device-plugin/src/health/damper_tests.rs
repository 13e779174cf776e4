// SPDX-License-Identifier: Apache-2.0
use super::*;

fn down() -> Verdict {
    Verdict::Down(Fault {
        reason: "no carrier".into(),
        end_is_told: true,
    })
}

/// A device, and the looks at it: one at each change, and one when the damper wants it.
struct Device {
    damper: Damper,
    now: Instant,
    /// Whether it was said to be down, from when on.
    said: Vec<(Instant, bool)>,
}

impl Device {
    fn new(verdict: &Verdict) -> Self {
        let mut device = Self {
            damper: Damper::default(),
            now: Instant::now(),
            said: Vec::new(),
        };
        device.look(verdict);
        device
    }

    fn look(&mut self, verdict: &Verdict) -> Change {
        let change = self.damper.look(self.now, verdict);
        let is_down = self.damper.fault().is_some();
        if self.said.last().is_none_or(|(_, said)| *said != is_down) {
            self.said.push((self.now, is_down));
        }
        change
    }

    /// It is as `verdict` says for so long.
    fn is(&mut self, verdict: &Verdict, lasting: Duration) {
        self.look(verdict);
        let end = self.now + lasting;
        while let Some(deadline) = self.damper.deadline().filter(|at| *at <= end) {
            assert!(deadline > self.now, "a look that comes to nothing");
            self.now = deadline;
            self.look(verdict);
        }
        self.now = end;
    }

    fn is_down(&self) -> bool {
        self.damper.fault().is_some()
    }

    /// The most changes of what is said in any minute.
    fn busiest_minute(&self) -> usize {
        let within = |from: Instant| {
            let minute = from..from + Duration::from_secs(60);
            let changes = self.said.iter().skip(1);
            changes.filter(|(at, _)| minute.contains(at)).count()
        };
        let minutes = self.said.iter().map(|(at, _)| within(*at));
        minutes.max().unwrap_or(0)
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn what_is_down_at_first_is_said_at_once() {
    assert!(Device::new(&down()).is_down());
    assert!(!Device::new(&Verdict::Up).is_down());
    assert!(!Device::new(&Verdict::Unknown("not seen".into())).is_down());
}

#[test]
fn down_and_up_are_said_within_a_second() {
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
fn a_moment_of_a_move_is_not_said() {
    let mut device = Device::new(&Verdict::Up);
    device.is(&down(), DOWN_AFTER - MILLISECOND);
    device.is(&Verdict::Up, MINUTE);
    assert_eq!(device.said.len(), 1);
}

#[test]
fn what_cannot_be_seen_stays_as_it_was() {
    let unknown = Verdict::Unknown("in a pod".into());
    for (known, is_down) in [(Verdict::Up, false), (down(), true)] {
        let mut device = Device::new(&known);
        device.is(&unknown, MINUTE);
        assert_eq!(device.is_down(), is_down);
    }
    // what began before goes on to count
    let mut device = Device::new(&Verdict::Up);
    device.look(&down());
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
        assert_eq!(device.look(&down()), Change::Held(expected));
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
    device.look(&Verdict::Up);
    assert!(!device.is_down(), "it was not forgiven");
}

#[test]
fn another_reason_is_told_in_its_place() {
    let mut device = Device::new(&down());
    let other = Verdict::Down(Fault {
        reason: "no RDMA device".into(),
        end_is_told: true,
    });
    device.look(&other);
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
fn whatever_happens_few_changes_are_said_and_the_truth_at_last() {
    // the worst that can be made on purpose: as often as it is free again, it goes down
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
    while device.said.len() < 60 {
        device.is(&down(), DOWN_AFTER);
        while device.is_down() {
            device.is(&Verdict::Up, MILLISECOND * 100);
        }
    }
    worst = worst.max(device.busiest_minute());
    assert!((4..=MOST).contains(&worst), "{worst} changes in a minute");
}
