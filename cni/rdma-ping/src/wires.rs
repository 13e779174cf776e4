// SPDX-License-Identifier: Apache-2.0
//! Detects swapped cables. The module sends ARP requests or neighbour solicitations on the network of an own rail. The
//! cables of two of the peer's rails are swapped if each of the two rails answers on the other rail's network. Such
//! requests need no route, and therefore also find rails of other networks.

use crate::outcome::{Outcome, PeerRail};
use rdma_netns::{HardwareAddress, InterfaceName, Linux, Question, probe::Sign};
use std::{
    net::IpAddr,
    thread::{self, ScopedJoinHandle},
};

/// A pair of rails without an answer: an own rail, and the peer's rail on the same network.
struct Silent {
    /// Index of the pair's outcome.
    at: usize,
    /// Netdev of the own rail.
    netdev: InterfaceName,
    /// Address of the peer's rail.
    address: IpAddr,
    rail: PeerRail,
}

/// Finds the outcomes whose requests have no answer because of swapped cables. Sets the swapped rail in each of them.
/// Sends probes from the calling thread's namespace. This requires `CAP_NET_RAW`. Without the capability, no rail is
/// set.
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
    let macs = thread::scope(|scope| {
        let of_wire = |own: &Silent| {
            let (netdev, silent) = (own.netdev.clone(), &silent);
            let ask = move || {
                let kernel = Linux::new();
                let answer = |it: &Silent| answering_mac(&kernel, &netdev, it.address);
                silent.iter().map(answer).collect::<Vec<_>>()
            };
            // if no thread starts, no rail counts as answering on this network
            thread::Builder::new().spawn_scoped(scope, ask).ok()
        };
        let wires: Vec<Option<ScopedJoinHandle<'_, _>>> = silent.iter().map(of_wire).collect();
        let joined = wires.into_iter().map(|it| it?.join().ok());
        let answers = joined.map(Option::unwrap_or_default);
        answers.collect::<Vec<Vec<_>>>()
    });
    let rails: Vec<&PeerRail> = silent.iter().map(|it| &it.rail).collect();
    for (own, Silent { at, .. }) in silent.iter().enumerate() {
        let other = swapped(&rails, &macs, own);
        outcomes[*at].swapped_with = other.map(|it| rails[it].netdev.clone());
    }
}

/// Returns the hardware address that answers for `address` on the network of `netdev`.
fn answering_mac(
    kernel: &Linux,
    netdev: &InterfaceName,
    address: IpAddr,
) -> Option<HardwareAddress> {
    let question = Question {
        link: netdev.clone(),
        address,
        answered_at: None,
    };
    let probed = kernel.probe_here(&[question]).ok()?;
    let mut conflicts = probed.conflicts.into_iter();
    conflicts.find(|it| it.sign == Sign::Has).map(|it| it.by)
}

/// Returns the index of the peer's rail that was swapped with the peer's rail `own`. `macs[wire][rail]` is the
/// hardware address that answers on the network of own rail `wire` for the address of the peer's rail `rail`.
///
/// Two rails are swapped only if each is on the other's network. On a node that lacks a NIC, the other rails have other
/// numbers, and only one of two rails is on the other's network. A rail that is also on its own network is not swapped,
/// because one network then connects both rails.
fn swapped(
    rails: &[&PeerRail],
    macs: &[Vec<Option<HardwareAddress>>],
    own: usize,
) -> Option<usize> {
    let at = |wire: usize, rail: usize| macs.get(wire)?.get(rail)?.as_ref();
    // compare the hardware address: a kernel also answers ARP for an address of another netdev (`arp_ignore` of 0)
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

    /// Returns the result of [`swapped`] for each rail. An element of `macs` is the last byte of a hardware address.
    fn all(rails: &[PeerRail], macs: &[&[Option<u8>]]) -> Vec<Option<usize>> {
        let rails: Vec<&PeerRail> = rails.iter().collect();
        let row = |row: &&[Option<u8>]| row.iter().map(|it| it.map(mac)).collect();
        let macs: Vec<Vec<_>> = macs.iter().map(row).collect();
        (0..rails.len())
            .map(|own| swapped(&rails, &macs, own))
            .collect()
    }

    #[test]
    fn a_swapped_rail_is_the_one_that_answers_in_place_of_another() {
        for is_known in [true, false] {
            let rails = [0, 1, 2].map(|it| rail(it, "b", is_known));
            // with neighbour discovery, each netdev answers only for its own addresses
            let nd: [&[Option<u8>]; 3] = [
                &[None, Some(1), None],
                &[Some(0), None, None],
                &[None, None, None],
            ];
            assert_eq!(all(&rails, &nd), [Some(1), Some(0), None]);
            // all rails are on one network, and one rail has no cable
            let flat: [&[Option<u8>]; 3] = [
                &[None, Some(1), Some(2)],
                &[None, Some(1), Some(2)],
                &[None, Some(1), Some(2)],
            ];
            assert_eq!(all(&rails, &flat), [None; 3]);
            assert_eq!(all(&rails, &[&[None; 3], &[None; 3], &[]]), [None; 3]);
        }
        // this node lacks the NIC of wire 1, so its rails 1 and 2 are on the wires 2 and 3
        let rails = [1, 2].map(|it| rail(it, "b", true));
        let shifted: [&[Option<u8>]; 2] = [&[None, Some(2)], &[None, None]];
        assert_eq!(all(&rails, &shifted), [None; 2]);
        // with ARP, the netdev on the wire answers for the addresses of both netdevs
        let rails = [0, 1].map(|it| rail(it, "b", true));
        let arp: [&[Option<u8>]; 2] = [&[Some(1), Some(1)], &[Some(0), Some(0)]];
        assert_eq!(all(&rails, &arp), [Some(1), Some(0)]);
        // the cables are right: RDMA gets no answer for another reason
        let right: [&[Option<u8>]; 2] = [&[Some(0), None], &[None, Some(1)]];
        assert_eq!(all(&rails, &right), [None; 2]);
    }

    #[test]
    fn a_rail_of_another_peer_is_not_swapped() {
        let rails = [rail(0, "b", true), rail(1, "c", true)];
        let macs: [&[Option<u8>]; 2] = [&[None, Some(1)], &[Some(0), None]];
        assert_eq!(all(&rails, &macs), [None; 2]);
    }
}
