// SPDX-License-Identifier: Apache-2.0
//! Detects swapped cables: on the network of an own rail, ARP or neighbour discovery is answered by a rail of the peer
//! with another number. These requests need no route, so they also find rails of other networks.

use crate::exchange::{Outcome, PeerRail};
use rdma_netns::{HardwareAddress, InterfaceName, Linux, Question, probe::Sign};
use std::{
    net::IpAddr,
    thread::{self, ScopedJoinHandle},
};

/// A rail, and the peer's rail of the same number, which does not answer.
struct Silent {
    /// Index of the outcome.
    at: usize,
    /// Own netdev.
    netdev: InterfaceName,
    /// Address of the peer's rail.
    address: IpAddr,
    rail: PeerRail,
}

/// Adds the swapped rail to each of `outcomes` that is unanswered because of a swap. Probes from the calling thread's
/// namespace, which needs `CAP_NET_RAW`; without it, adds no rail.
pub(crate) fn compare(outcomes: &mut [Outcome]) {
    let mut silent: Vec<Silent> = vec![];
    for (at, Outcome { pair, times, .. }) in outcomes.iter().enumerate() {
        let netdev = pair.from.clone().and_then(|it| it.try_into().ok());
        let parts = (netdev, pair.addresses, pair.rail.clone());
        if let (Some(netdev), Some((_, address)), Some(rail)) = parts
            && rail.is_same
            && times.is_empty()
        {
            silent.push(Silent {
                at,
                netdev,
                address,
                rail,
            });
        }
    }
    if silent.len() < 2 {
        return;
    }
    let heard = thread::scope(|scope| {
        let of_wire = |own: &Silent| {
            let (netdev, silent) = (own.netdev.clone(), &silent);
            let ask = move || {
                let kernel = Linux::new();
                let answer = |it: &Silent| heard(&kernel, &netdev, it.address);
                silent.iter().map(answer).collect::<Vec<_>>()
            };
            // without a thread the rail counts as not heard
            thread::Builder::new().spawn_scoped(scope, ask).ok()
        };
        let wires: Vec<Option<ScopedJoinHandle<'_, _>>> = silent.iter().map(of_wire).collect();
        let joined = wires.into_iter().map(|it| it?.join().ok());
        let answers = joined.map(Option::unwrap_or_default);
        answers.collect::<Vec<Vec<_>>>()
    });
    let rails: Vec<&PeerRail> = silent.iter().map(|it| &it.rail).collect();
    for (own, Silent { at, .. }) in silent.iter().enumerate() {
        let other = swapped(&rails, &heard, own);
        outcomes[*at].swapped_with = other.map(|it| rails[it].netdev.clone());
    }
}

/// Returns the hardware address that answers for `address` on the network of `netdev`.
fn heard(kernel: &Linux, netdev: &InterfaceName, address: IpAddr) -> Option<HardwareAddress> {
    let question = Question {
        link: netdev.clone(),
        address,
        answered_at: None,
    };
    let probed = kernel.probe_here(&[question]).ok()?;
    let mut conflicts = probed.conflicts.into_iter();
    conflicts.find(|it| it.sign == Sign::Has).map(|it| it.by)
}

/// Returns the peer's rail that is on the network of `own` in place of the expected rail, if the expected rail is on
/// that rail's network. `heard` contains for each network and each rail's address the machine that answers. One
/// direction alone is no swap, because rails have other numbers on a node that lacks a NIC. A rail that is also on its
/// own network is not swapped: the network connects both.
fn swapped(
    rails: &[&PeerRail],
    heard: &[Vec<Option<HardwareAddress>>],
    own: usize,
) -> Option<usize> {
    let at = |wire: usize, rail: usize| heard.get(wire)?.get(rail)?.as_ref();
    // a kernel answers ARP for an address of another netdev, too (`arp_ignore` of 0)
    let has =
        |rail: usize, mac: &HardwareAddress| rails[rail].mac.as_ref().is_none_or(|it| it == mac);
    let is_at = |wire: usize, rail: usize| at(wire, rail).is_some_and(|mac| has(rail, mac));
    if is_at(own, own) {
        return None;
    }
    let is_other = |it: &usize| {
        rails[*it].peer == rails[own].peer && is_at(own, *it) && is_at(*it, own) && !is_at(*it, *it)
    };
    (0..rails.len()).filter(|it| *it != own).find(is_other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(last: u8) -> HardwareAddress {
        HardwareAddress(vec![2, 0, 0, 0, 0, last])
    }

    fn rail(number: u8, peer: &str, is_known: bool) -> PeerRail {
        PeerRail {
            is_of_node: false,
            peer: peer.to_owned(),
            netdev: format!("rdma{number}"),
            mac: is_known.then(|| mac(number)),
            is_same: true,
        }
    }

    /// The rail in place of each own one, where `heard[wire][rail]` is the last byte of who answers.
    fn all(rails: &[PeerRail], heard: &[&[Option<u8>]]) -> Vec<Option<usize>> {
        let rails: Vec<&PeerRail> = rails.iter().collect();
        let row = |row: &&[Option<u8>]| row.iter().map(|it| it.map(mac)).collect();
        let heard: Vec<Vec<_>> = heard.iter().map(row).collect();
        (0..rails.len())
            .map(|own| swapped(&rails, &heard, own))
            .collect()
    }

    #[test]
    fn a_swapped_rail_is_the_one_that_answers_in_place_of_another() {
        for is_known in [true, false] {
            let rails = [0, 1, 2].map(|it| rail(it, "b", is_known));
            // neighbour discovery: each netdev answers for its own addresses
            let nd: [&[Option<u8>]; 3] = [
                &[None, Some(1), None],
                &[Some(0), None, None],
                &[None, None, None],
            ];
            assert_eq!(all(&rails, &nd), [Some(1), Some(0), None]);
            // one network, and a rail without its cable
            let flat: [&[Option<u8>]; 3] = [
                &[None, Some(1), Some(2)],
                &[None, Some(1), Some(2)],
                &[None, Some(1), Some(2)],
            ];
            assert_eq!(all(&rails, &flat), [None; 3]);
            assert_eq!(all(&rails, &[&[None; 3], &[None; 3], &[]]), [None; 3]);
        }
        // this node lacks the NIC of wire 1: its rails 1 and 2 are on the wires 2 and 3
        let rails = [1, 2].map(|it| rail(it, "b", true));
        let shifted: [&[Option<u8>]; 2] = [&[None, Some(2)], &[None, None]];
        assert_eq!(all(&rails, &shifted), [None; 2]);
        // ARP: the netdev on the wire answers for the addresses of both
        let rails = [0, 1].map(|it| rail(it, "b", true));
        let arp: [&[Option<u8>]; 2] = [&[Some(1), Some(1)], &[Some(0), Some(0)]];
        assert_eq!(all(&rails, &arp), [Some(1), Some(0)]);
        // RDMA is silent for another reason
        let right: [&[Option<u8>]; 2] = [&[Some(0), None], &[None, Some(1)]];
        assert_eq!(all(&rails, &right), [None; 2]);
    }

    #[test]
    fn a_rail_of_another_peer_is_not_swapped() {
        let rails = [rail(0, "b", true), rail(1, "c", true)];
        let heard: [&[Option<u8>]; 2] = [&[None, Some(1)], &[Some(0), None]];
        assert_eq!(all(&rails, &heard), [None; 2]);
    }
}
