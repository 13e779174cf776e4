// SPDX-License-Identifier: Apache-2.0
//! Stable addresses of RFC 7217: a pod with the same name gets the same address again on the same node. Nodes share no
//! state.
//!
//! The interface identifier is the number `F(Prefix, Net_Iface, Network_ID, DAD_Counter, secret_key)` (RFC 7217,
//! section 5). F is HMAC-SHA-256 with the node's secret as its key. Net_Iface is the rail: the network's name and the
//! interface's name in the pod. Network_ID is the pod, so two pods on one rail have different addresses. The plugin
//! takes the number modulo the size of the pool, which works for any prefix length, for IPv4, and for
//! `rangeStart`…`rangeEnd`.

use crate::range::Pool;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Length of the node's secret, bytes. RFC 7217 requires at least 128 bits.
pub const SECRET: usize = 32;

/// The owner of a stable address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the network.
    pub network: String,
    /// Name of the interface in the pod.
    pub interface: String,
    /// `namespace/name` of the pod, or the container's id.
    pub pod: String,
}

/// Returns the addresses of `pool` for `identity`, in the order of DAD_Counter: 0, 1, 2…
pub fn addresses<'a>(
    pool: &'a Pool,
    identity: &'a Identity,
    secret: &'a [u8; SECRET],
) -> impl Iterator<Item = u128> + Clone + 'a {
    let subnets: Vec<String> = pool
        .ranges()
        .iter()
        .map(|range| range.subnet.to_string())
        .collect();
    let prefix = subnets.join(",");
    let size = pool.size();
    (0_u32..).map(move |counter| pool.at(number(&prefix, identity, counter, secret) % size))
}

/// Returns 128 bits of the function F.
fn number(prefix: &str, identity: &Identity, counter: u32, secret: &[u8; SECRET]) -> u128 {
    #[expect(
        clippy::expect_used,
        reason = "HMAC takes keys of any length (RFC 2104)"
    )]
    let mut hmac = Hmac::<Sha256>::new_from_slice(secret).expect("a key of any length");
    let Identity {
        network,
        interface,
        pod,
    } = identity;
    for field in [prefix, network, interface, pod] {
        // each field follows its length, so different fields never make the same text
        hmac.update(&(field.len() as u64).to_be_bytes());
        hmac.update(field.as_bytes());
    }
    hmac.update(&counter.to_be_bytes());
    let bytes = hmac.finalize().into_bytes();
    let (high, _) = bytes.split_at(16);
    high.iter()
        .fold(0, |number: u128, byte| number << 8 | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{address::cidr, range::Range};
    use std::collections::HashSet;

    fn pool(subnets: &[&str]) -> Pool {
        let range = |text: &&str| Range::new(cidr(text).unwrap(), None, None, None).unwrap();
        Pool::new(subnets.iter().map(range).collect(), "0".into()).unwrap()
    }

    fn pod(name: &str) -> Identity {
        Identity {
            network: "rails".into(),
            interface: "rdma0".into(),
            pod: format!("default/{name}"),
        }
    }

    #[test]
    fn the_same_pod_gets_the_same_address() {
        let pool = pool(&["2001:db8:1::/64"]);
        let tries = |identity: &Identity, secret: &[u8; SECRET]| -> Vec<u128> {
            addresses(&pool, identity, secret).take(4).collect()
        };
        let first = tries(&pod("a"), &[7; SECRET]);
        assert_eq!(first, tries(&pod("a"), &[7; SECRET]));
        let distinct: HashSet<_> = first.iter().collect();
        assert_eq!(distinct.len(), 4, "each counter has its own");
        let mut rail = pod("a");
        rail.interface = "rdma1".into();
        let mut network = pod("a");
        network.network = "rail".into();
        network.interface = "srdma0".into();
        for (identity, secret) in [
            (pod("b"), [7; SECRET]),
            (pod("a"), [8; SECRET]),
            (rail, [7; SECRET]),
            (network, [7; SECRET]),
        ] {
            assert_ne!(first, tries(&identity, &secret), "{identity:?}");
        }
    }

    #[test]
    fn the_function_does_not_change() {
        // later versions must make the same stable addresses
        let secret: [u8; SECRET] = std::array::from_fn(|index| index as u8);
        let (pool, pod) = (pool(&["2001:db8:1::/64"]), pod("a"));
        let first = addresses(&pool, &pod, &secret).next().unwrap();
        assert_eq!(
            pool.family().address(first).to_string(),
            "2001:db8:1:0:cb5f:6359:cb73:6d85"
        );
    }

    #[test]
    fn a_million_pods_on_each_of_two_nodes_share_no_address() {
        let pool = pool(&["2001:db8:1::/64"]);
        let mut seen = HashSet::with_capacity(2_000_000);
        for secret in [[1; SECRET], [2; SECRET]] {
            for index in 0..1_000_000 {
                let first = addresses(&pool, &pod(&index.to_string()), &secret).next();
                assert!(seen.insert(first.unwrap()), "pod {index}");
            }
        }
    }

    #[test]
    fn every_address_is_in_the_pool_and_all_are_reached() {
        for subnets in [
            &["10.0.0.0/29"][..],
            &["10.0.0.0/30", "10.9.0.0/30", "10.7.0.0/29"],
        ] {
            let pool = pool(subnets);
            let identity = pod("a");
            let given: HashSet<u128> = addresses(&pool, &identity, &[3; SECRET])
                .take(500)
                .collect();
            assert!(
                given
                    .iter()
                    .all(|number| pool.range_of(pool.family().address(*number)).is_some())
            );
            assert_eq!(given.len() as u128, pool.size());
        }
    }
}
