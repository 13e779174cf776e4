// SPDX-License-Identifier: Apache-2.0
//! The rails of a node, their peers, and the verdicts. No I/O.

use super::{
    FabricRail, RailState,
    choice::{group, groups, mix, order, wanted_next},
};
use crate::rails::common;
use std::{net::IpAddr, sync::Arc};

/// Requests of each rail in an interval.
const REQUESTS: usize = 2;
/// Lost requests in a row, to different peers where there are as many, after which a rail is unreachable. With 8 and without
/// a second try, 20 % loss each way made 613 of 40,000 rails unreachable in a simulation.
const LOST: u32 = 12;
/// Answers to the last [`LOST`] requests after which the rail is reachable again.
const ANSWERED: u32 = 2;

/// A node whose rails can be asked.
#[derive(Debug)]
pub(super) struct Peer {
    /// Hash of the node's name.
    pub(super) hash: u64,
    pub(super) rails: Vec<FabricRail>,
}

/// Verdict on a rail.
#[derive(Clone, Copy, Debug, Default)]
struct Judge {
    /// A bit for each of the last requests; 1: answered.
    last: u32,
    requests: u32,
    is_unreachable: bool,
}

impl Judge {
    fn take(&mut self, is_answered: bool) {
        self.last = (self.last << 1 | u32::from(is_answered)) & ((1 << LOST) - 1);
        self.requests = (self.requests + 1).min(LOST);
        self.is_unreachable = match self.is_unreachable {
            false => self.requests == LOST && self.last == 0,
            true => self.last.count_ones() < ANSWERED,
        };
    }
}

/// A rail of this node.
#[derive(Debug)]
struct Watched {
    rail: FabricRail,
    judge: Judge,
    /// Own address and the peer's, in the order of the requests.
    targets: Vec<(IpAddr, IpAddr)>,
    /// Number of the next request.
    turn: usize,
    /// Reason why the last request was not sent.
    not_asked: Option<&'static str>,
}

/// End of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered,
    Lost,
    /// The request could not be sent, for the reason given: the answer says nothing about the fabric.
    NotAsked(&'static str),
}

/// State of a node's watch.
#[derive(Debug)]
pub(super) struct Watch {
    seed: u64,
    /// Number of groups in the next list.
    wanted: u32,
    /// Number of the list.
    list: u64,
    peers: Vec<Arc<Peer>>,
    rails: Vec<Watched>,
}

impl Watch {
    /// Returns the watch of the node whose name has this hash.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            wanted: 1,
            list: 0,
            peers: vec![],
            rails: vec![],
        }
    }

    /// Takes the rails that the node has now. A rail keeps its verdict.
    pub(super) fn has(&mut self, rails: Vec<FabricRail>) {
        let mut before = std::mem::take(&mut self.rails);
        for rail in rails {
            let known = before.iter().position(|it| it.rail.is_same(&rail));
            let known = known.map(|it| before.swap_remove(it));
            self.rails.push(match known {
                Some(known) if known.rail == rail => known,
                known => Watched {
                    judge: known.map(|it| it.judge).unwrap_or_default(),
                    targets: self.targets(&rail),
                    rail,
                    turn: 0,
                    not_asked: None,
                },
            });
        }
    }

    /// Begins another list.
    pub(super) fn begin_list(&mut self) {
        self.list += 1;
    }

    /// Returns the groups to list.
    pub(super) fn groups(&self) -> Vec<u32> {
        groups(self.seed, self.list, self.wanted).collect()
    }

    /// Takes the nodes of a list, with or without this one. Returns false if the list is to be repeated with more groups.
    pub(super) fn listed(&mut self, mut peers: Vec<Arc<Peer>>) -> bool {
        peers.retain(|it| it.hash != self.seed);
        let wanted = wanted_next(self.wanted, peers.len());
        let is_enough = wanted <= self.wanted;
        self.wanted = wanted;
        if is_enough {
            self.peers = peers;
            for index in 0..self.rails.len() {
                self.rails[index].targets = self.targets(&self.rails[index].rail);
            }
        }
        is_enough
    }

    /// Returns the peers of `rail` in the order of its requests.
    fn targets(&self, rail: &FabricRail) -> Vec<(IpAddr, IpAddr)> {
        let target = |peer: &Arc<Peer>| {
            let same = peer.rails.iter().find(|it| it.has_place_of(rail))?;
            Some((peer.hash, common(&rail.addresses, &same.addresses)?))
        };
        let targets = self.peers.iter().filter_map(target).collect();
        let seed = self.seed ^ mix(rail.number as u64) ^ mix(self.list);
        order(seed, targets)
    }

    /// Returns the rails, by index, that send a request in this interval, in their order.
    pub(super) fn round(&self) -> Vec<usize> {
        let rails = (0..self.rails.len()).filter(|it| !self.rails[*it].targets.is_empty());
        let rails: Vec<usize> = rails.collect();
        rails.repeat(REQUESTS)
    }

    /// Returns own address and peer's address for the next request of `rail`.
    pub(super) fn target(&mut self, rail: usize) -> Option<(IpAddr, IpAddr)> {
        let rail = self.rails.get_mut(rail)?;
        let target = rail.targets.get(rail.turn % rail.targets.len().max(1))?;
        rail.turn += 1;
        Some(*target)
    }

    /// Takes the end of a request of `rail`. Returns the rail's new verdict, if it changed: true for unreachable.
    pub(super) fn take(&mut self, rail: usize, outcome: Outcome) -> Option<bool> {
        let rail = self.rails.get_mut(rail)?;
        let before = rail.judge.is_unreachable;
        rail.not_asked = None;
        match outcome {
            Outcome::Answered => rail.judge.take(true),
            Outcome::Lost => rail.judge.take(false),
            Outcome::NotAsked(why) => rail.not_asked = Some(why),
        }
        let after = rail.judge.is_unreachable;
        (before != after).then_some(after)
    }

    /// Returns the RDMA device of `rail`.
    pub(super) fn device(&self, rail: usize) -> &str {
        self.rails.get(rail).map_or("", |it| &it.rail.device)
    }

    /// Returns the states of all rails.
    pub(super) fn states(&self) -> Vec<RailState> {
        let state = |it: &Watched| RailState {
            device: it.rail.device.clone(),
            is_unreachable: it.judge.is_unreachable,
            peers: it.targets.len(),
            not_asked: it.not_asked,
        };
        self.rails.iter().map(state).collect()
    }

    /// Returns the group of this node.
    pub(super) fn group(&self) -> u32 {
        group(self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail(number: usize, addresses: &[&str]) -> FabricRail {
        let addresses = addresses.iter().map(|it| it.parse().expect("an address"));
        FabricRail {
            resource: "rdma/hca".to_owned(),
            number,
            device: format!("mlx5_{number}"),
            addresses: addresses.collect(),
        }
    }

    fn watch(rails: Vec<FabricRail>, peers: Vec<Vec<FabricRail>>) -> Watch {
        let mut watch = Watch::new(7);
        watch.has(rails);
        let peers = (0..).zip(peers);
        let peers: Vec<_> = peers
            .map(|(hash, rails)| Arc::new(Peer { hash, rails }))
            .collect();
        while !watch.listed(peers.clone()) {}
        watch
    }

    /// A rail has a peer's rail of its number and family; the node itself is no peer.
    #[test]
    fn rails_meet_their_own_number_and_family() {
        let own = vec![rail(0, &["fd00::1", "10.0.0.1"]), rail(1, &["10.1.0.1"])];
        let peers = (0..8).map(|it| {
            let number = (it % 2) as usize;
            vec![rail(number, &[&format!("10.{number}.0.{}", it + 10)])]
        });
        let mut watch = watch(own, peers.collect());
        // peer 7 is this node
        let counts: Vec<usize> = watch.states().iter().map(|it| it.peers).collect();
        assert_eq!(counts, [4, 3]);
        assert_eq!(watch.round(), [0, 1, 0, 1]);
        for _ in 0..8 {
            let (from, to) = watch.target(1).expect("a peer");
            assert_eq!(from.to_string(), "10.1.0.1");
            assert!(to.to_string().starts_with("10.1.0."), "{to}");
        }
    }

    /// A cluster of two nodes is judged by its one other node. A request that was not sent judges nothing.
    #[test]
    fn twelve_losses_are_unreachable_and_two_answers_end_it() {
        let mut watch = watch(
            vec![rail(0, &["10.0.0.1"])],
            vec![vec![rail(0, &["10.0.0.2"])]],
        );
        for _ in 0..11 {
            assert_eq!(watch.take(0, Outcome::Lost), None);
            assert_eq!(watch.take(0, Outcome::NotAsked("no-route")), None);
        }
        assert_eq!(watch.states()[0].not_asked, Some("no-route"));
        assert_eq!(watch.take(0, Outcome::Lost), Some(true));
        assert_eq!(watch.take(0, Outcome::Answered), None);
        // the same rail with another address
        watch.has(vec![rail(0, &["10.0.0.3"])]);
        assert_eq!(
            watch.target(0).map(|it| it.0.to_string()).as_deref(),
            Some("10.0.0.3")
        );
        assert!(watch.states()[0].is_unreachable);
        assert_eq!(watch.take(0, Outcome::Answered), Some(false));
        // in the namespace of a pod
        watch.has(vec![]);
        assert!(watch.round().is_empty() && watch.target(0).is_none());
    }
}
