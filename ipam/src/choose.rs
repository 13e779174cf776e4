// SPDX-License-Identifier: Apache-2.0
//! Chooses one free address of a pool.
//!
//! A strategy determines the order of the tries. After [`TRIES`] tries, the plugin reads all leases once and chooses
//! the first free address. So even a long run of leased addresses costs only one read of the directory, whatever the
//! size of the range.

use crate::{address::number, forbidden::Forbidden, range::Pool};
use std::{collections::BTreeSet, net::IpAddr};

/// Number of addresses that are checked one by one.
pub const TRIES: usize = 64;

/// Source of unavailable addresses: leased addresses, and addresses that are temporarily unavailable for another
/// reason.
pub trait Occupancy {
    /// Error of a check.
    type Error;

    /// Returns true if `ip` is unavailable now.
    fn is_taken(&self, ip: IpAddr) -> Result<bool, Self::Error>;

    /// Returns all addresses that are unavailable now.
    fn all_taken(&self) -> Result<BTreeSet<IpAddr>, Self::Error>;
}

/// A run of consecutive addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First address.
    pub first: u128,
    /// Last address.
    pub last: u128,
}

/// The result of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A free address.
    Free(IpAddr),
    /// No address is free.
    Full {
        /// Number of unavailable addresses in the pool's ranges.
        held: usize,
    },
}

/// Returns all addresses of `pool` in the order of its ranges, as in host-local's round robin. The order starts after
/// `last`, and ends with `last` if `last` is in the pool.
pub fn round_robin(pool: &Pool, last: Option<IpAddr>) -> Vec<Segment> {
    let segment = |first, last| Segment { first, last };
    let ranges = pool.ranges().iter();
    let all: Vec<Segment> = ranges.map(|it| segment(it.start, it.end)).collect();
    let found = last.and_then(|ip| {
        let index = pool.ranges().iter().position(|range| range.contains(ip))?;
        Some((index, number(ip)))
    });
    let Some((index, last)) = found else {
        return all;
    };
    let here = all[index];
    let mut segments = vec![];
    if last < here.last {
        segments.push(segment(last + 1, here.last));
    }
    segments.extend(&all[index + 1..]);
    segments.extend(&all[..index]);
    segments.push(segment(here.first, last));
    segments
}

/// Returns the first free address. First tries at most [`TRIES`] addresses of `tries`, then the addresses of
/// `segments`.
pub fn choose<O: Occupancy>(
    pool: &Pool,
    forbidden: &Forbidden,
    tries: impl Iterator<Item = u128>,
    segments: &[Segment],
    occupancy: &O,
) -> Result<Choice, O::Error> {
    let family = pool.family();
    for number in tries.take(TRIES) {
        let ip = family.address(number);
        if forbidden.why(number).is_none() && !occupancy.is_taken(ip)? {
            return Ok(Choice::Free(ip));
        }
    }
    let taken = numbers(pool, &occupancy.all_taken()?);
    let gap = segments
        .iter()
        .find_map(|segment| gap(*segment, forbidden, &taken));
    Ok(match gap {
        Some(number) => Choice::Free(family.address(number)),
        None => Choice::Full { held: taken.len() },
    })
}

/// Returns the number of addresses of `taken` in `pool` if `pool` has no free address. Returns `None` if it has one.
pub fn exhausted(pool: &Pool, forbidden: &Forbidden, taken: &BTreeSet<IpAddr>) -> Option<usize> {
    let taken = numbers(pool, taken);
    let free = |segment: &Segment| gap(*segment, forbidden, &taken).is_some();
    (!round_robin(pool, None).iter().any(free)).then_some(taken.len())
}

fn numbers(pool: &Pool, taken: &BTreeSet<IpAddr>) -> BTreeSet<u128> {
    let in_pool = taken.iter().filter(|ip| pool.range_of(**ip).is_some());
    let mut numbers = BTreeSet::new();
    numbers.extend(in_pool.map(|ip| number(*ip)));
    numbers
}

fn gap(segment: Segment, forbidden: &Forbidden, taken: &BTreeSet<u128>) -> Option<u128> {
    let mut candidate = segment.first;
    while candidate <= segment.last {
        let skip_to = match forbidden.until(candidate) {
            Some(last) => last,
            None if taken.contains(&candidate) => candidate,
            None => return Some(candidate),
        };
        candidate = skip_to.checked_add(1)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        address::{Family, cidr},
        range::Range,
    };
    use std::{cell::Cell, convert::Infallible};

    struct Held {
        taken: BTreeSet<IpAddr>,
        checks: Cell<usize>,
        reads: Cell<usize>,
    }

    impl Held {
        fn new(taken: impl IntoIterator<Item = IpAddr>) -> Self {
            Self {
                taken: taken.into_iter().collect(),
                checks: Cell::new(0),
                reads: Cell::new(0),
            }
        }
    }

    impl Occupancy for Held {
        type Error = Infallible;

        fn is_taken(&self, ip: IpAddr) -> Result<bool, Infallible> {
            self.checks.set(self.checks.get() + 1);
            Ok(self.taken.contains(&ip))
        }

        fn all_taken(&self) -> Result<BTreeSet<IpAddr>, Infallible> {
            self.reads.set(self.reads.get() + 1);
            Ok(self.taken.clone())
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn pool(ranges: &[(&str, &str, &str)]) -> Pool {
        let ranges = ranges.iter().map(|(subnet, start, end)| {
            let ends = (Some(ip(start)), Some(ip(end)));
            Range::new(cidr(subnet).unwrap(), ends.0, ends.1, None).unwrap()
        });
        Pool::new(ranges.collect(), "0".into()).unwrap()
    }

    fn next(pool: &Pool, last: Option<&str>, held: &Held) -> Choice {
        let segments = round_robin(pool, last.map(ip));
        let forbidden = Forbidden::of(pool, &[]);
        let tries = segments.iter().flat_map(|it| it.first..=it.last);
        let Ok(choice) = choose(pool, &forbidden, tries, &segments, held);
        choice
    }

    #[test]
    fn a_set_is_gone_round_once() {
        let pool = pool(&[
            ("10.0.0.0/24", "10.0.0.9", "10.0.0.10"),
            ("10.0.1.0/24", "10.0.1.1", "10.0.1.2"),
        ]);
        let mut held = Held::new([]);
        let mut given = vec![];
        let mut last = Some("10.0.0.9".to_owned());
        while let Choice::Free(ip) = next(&pool, last.as_deref(), &held) {
            given.push(ip.to_string());
            held.taken.insert(ip);
            last = Some(ip.to_string());
        }
        assert_eq!(given, ["10.0.0.10", "10.0.1.2", "10.0.0.9"]);
        assert_eq!(next(&pool, None, &held), Choice::Full { held: 3 });
        assert_eq!(
            exhausted(&pool, &Forbidden::of(&pool, &[]), &held.taken),
            Some(3)
        );
    }

    #[test]
    fn a_pointer_out_of_the_set_is_none() {
        let pool = pool(&[("10.0.0.0/24", "10.0.0.9", "10.0.0.10")]);
        for last in [None, Some("10.0.0.11"), Some("fd00::1")] {
            assert_eq!(
                next(&pool, last, &Held::new([])),
                Choice::Free(ip("10.0.0.9"))
            );
        }
    }

    #[test]
    fn a_long_run_costs_one_reading() {
        let pool = pool(&[("fd00::/64", "fd00::1", "fd00::ffff:ffff:ffff:ffff")]);
        let held =
            Held::new((1..=50_000_u128).map(|n| Family::V6.address(number(ip("fd00::")) + n)));
        assert_eq!(next(&pool, None, &held), Choice::Free(ip("fd00::c351")));
        assert_eq!(held.reads.get(), 1);
        assert!(held.checks.get() <= TRIES);
        assert_eq!(
            next(&pool, Some("fd00::c350"), &held),
            Choice::Free(ip("fd00::c351"))
        );
        assert_eq!(held.reads.get(), 1);
    }

    #[test]
    fn a_forbidden_range_is_skipped_as_a_whole() {
        let start = "fd00::200:5efe:ffff:fff0";
        let pool = pool(&[("fd00::/64", start, "fd00::ffff:ffff:ffff:ffff")]);
        let run = number(ip(start))..=number(ip("fd00::200:5efe:ffff:ffff"));
        let held = Held::new(run.map(|n| Family::V6.address(n)));
        // the reserved block (RFC 5453) begins only at 200:5eff:fe00:0
        assert_eq!(
            next(&pool, None, &held),
            Choice::Free(ip("fd00::200:5eff:0:0"))
        );
        let held = Held::new([]);
        let before = Some("fd00::200:5eff:fdff:ffff");
        assert_eq!(
            next(&pool, before, &held),
            Choice::Free(ip("fd00::200:5eff:ff00:0"))
        );
    }

    #[test]
    fn the_end_of_all_addresses_is_an_end() {
        let last = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        let pool = pool(&[("::/0", last, last)]);
        let held = Held::new([ip(last)]);
        assert_eq!(next(&pool, None, &held), Choice::Full { held: 1 });
    }
}
