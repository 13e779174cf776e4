// SPDX-License-Identifier: Apache-2.0
//! Chooses peers, and the times of requests. This module has no I/O.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

/// Number of groups of nodes. The label of a node's ConfigMap is the number of its group.
pub(super) const GROUPS: u32 = 256;
/// Sufficient number of peers. A node lists further groups until it has this number of peers, or has listed all groups.
const ENOUGH: usize = 32;
/// Shortest time between two requests of a node. It limits a node to ten requests a second.
const GAP: Duration = Duration::from_millis(100);

/// Returns a hash of a node's name.
pub(super) fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// Returns the group of the node with this hash.
pub(super) fn group(hash: u64) -> u32 {
    (hash % u64::from(GROUPS)) as u32
}

/// Mixes the bits of `value` (SplitMix64).
pub(super) fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Returns `wanted` groups for the list with the number `list`. `seed` and `list` determine the first of these groups,
/// so that nodes and lists differ.
pub(super) fn groups(seed: u64, list: u64, wanted: u32) -> impl Iterator<Item = u32> {
    let first = mix(seed).wrapping_add(list.wrapping_mul(u64::from(wanted)));
    (0..wanted).map(move |it| group(first.wrapping_add(u64::from(it))))
}

/// Returns the number of groups for the next list. `found` is the number of peers in the `wanted` groups of the last
/// list.
pub(super) fn wanted_next(wanted: u32, found: usize) -> u32 {
    match found {
        _ if found < ENOUGH => (wanted * 2).min(GROUPS),
        _ if found > 4 * ENOUGH => (wanted / 2).max(1),
        _ => wanted,
    }
}

/// Estimates the number of the cluster's rails from the `found` rails in `wanted` groups. The number is exact if
/// `wanted` is the number of all groups.
pub(super) fn cluster(found: usize, wanted: u32) -> usize {
    found * GROUPS as usize / wanted.max(1) as usize
}

/// Shuffles `peers` by `seed` and by the hash of each peer. A rail sends one request to each peer, and then begins
/// again.
///
/// With steps of a fixed length instead, a rail could reach only one member of each group of nodes. A fault of these
/// few nodes would then look like a fault of all nodes.
pub(super) fn order<T>(seed: u64, mut peers: Vec<(u64, T)>) -> Vec<T> {
    peers.sort_by_cached_key(|(hash, _)| mix(seed ^ mix(*hash)));
    peers.into_iter().map(|(_, value)| value).collect()
}

/// Returns the time of the next request. The `requests` of an `interval` are distributed over the interval. They are at
/// least [`GAP`] apart, also after the program was suspended.
pub(super) fn next(
    previous: Duration,
    now: Duration,
    interval: Duration,
    requests: usize,
) -> Duration {
    let requests = u32::try_from(requests).unwrap_or(u32::MAX).max(1);
    (previous + (interval / requests).max(GAP)).max(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_groups_are_listed_in_the_course_of_time() {
        let listed: BTreeSet<u32> = (0..128).flat_map(|it| groups(5, it, 2)).collect();
        assert_eq!(listed.len(), 256);
        assert_eq!(groups(9, 3, GROUPS).collect::<BTreeSet<_>>().len(), 256);
    }

    #[test]
    fn a_small_cluster_is_listed_whole() {
        for nodes in [1, 2, 31] {
            let mut wanted = 1;
            let mut lists = 0;
            while wanted < GROUPS {
                // double the number of groups, because the nodes of a small cluster are in few groups only
                wanted = wanted_next(wanted, 0);
                lists += 1;
            }
            assert_eq!((lists, wanted_next(wanted, nodes)), (8, GROUPS));
        }
        assert_eq!([wanted_next(8, 32), wanted_next(8, 129)], [8, 4]);
    }

    #[test]
    fn an_order_has_each_peer_once() {
        let peers = || (0..200).map(|it| (hash(&it.to_string()), it)).collect();
        let [one, other] = [1, 2].map(|seed| order(seed, peers()));
        assert_ne!(one, other);
        assert_eq!(BTreeSet::from_iter(one), (0..200).collect());
    }

    /// The settings require a thousand requests in a millisecond, and the program is suspended for an hour.
    #[test]
    fn no_second_has_more_than_ten_requests() {
        let (mut now, mut previous, mut all) = (Duration::ZERO, Duration::ZERO, vec![]);
        for number in 0..500 {
            if number == 100 {
                now += Duration::from_secs(3600);
            }
            now = next(previous, now, Duration::from_millis(1), 1000);
            previous = now;
            all.push(now);
        }
        let second = Duration::from_secs(1);
        assert!(all.windows(11).all(|it| it[10] - it[0] >= second));
        assert_eq!(all[499] - all[100], Duration::from_millis(39_900));
    }
}
