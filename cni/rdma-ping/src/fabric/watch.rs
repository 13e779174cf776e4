// SPDX-License-Identifier: Apache-2.0
//! Rails of a node, their peers, and the verdicts on the rails. This module has no I/O.

use super::{
    FabricRail, LastRequest, RailState,
    choice::{cluster, group, groups, mix, order, wanted_next},
};
use crate::rails::common;
use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

/// Number of requests of each rail in an interval.
const REQUESTS: usize = 2;
/// Number of successive lost requests after which a rail is unreachable. The requests go to different peers if there
/// are enough peers. In a simulation with 8 requests and without a second try, 613 of 40,000 rails became unreachable
/// by a loss of 20 % in each direction.
const LOST: u32 = 12;
/// Number of answers to the last [`LOST`] requests after which an unreachable rail is reachable again.
const ANSWERED: u32 = 2;

/// A node in a list from the API server.
#[derive(Debug)]
pub(super) struct Peer {
    /// Name of the node.
    pub(super) node: String,
    /// Hash of the node's name.
    pub(super) hash: u64,
    pub(super) rails: Vec<FabricRail>,
    /// Number in the node's ConfigMap. While a rail of the node is unreachable, the node's watch changes the number
    /// before each list of its peers.
    pub(super) renewal: u64,
}

impl Peer {
    fn unreachable(&self) -> usize {
        self.rails.iter().filter(|it| it.is_unreachable).count()
    }
}

/// Verdict on a rail.
#[derive(Clone, Copy, Debug, Default)]
struct Judge {
    /// One bit for each of the last requests. 1: answered.
    last: u32,
    requests: u32,
    is_unreachable: bool,
    /// True if the daemon must treat the rail as unhealthy. The value stays until the rail is reachable.
    is_unhealthy: bool,
}

impl Judge {
    fn take(&mut self, is_answered: bool) {
        self.last = (self.last << 1 | u32::from(is_answered)) & ((1 << LOST) - 1);
        self.requests = (self.requests + 1).min(LOST);
        self.is_unreachable = match self.is_unreachable {
            false => self.requests == LOST && self.last == 0,
            true => self.last.count_ones() < ANSWERED,
        };
        self.is_unhealthy &= self.is_unreachable;
    }
}

/// A peer, with the own address and the peer's address for a request.
type Target = (Arc<Peer>, (IpAddr, IpAddr));

/// A rail of this node, with its verdict and requests.
#[derive(Debug)]
struct Watched {
    rail: FabricRail,
    judge: Judge,
    /// Targets of the rail's requests, in their order.
    targets: Vec<Target>,
    /// Number of the next request. It determines the request's target.
    turn: usize,
    /// Last request to each of the last peers, at most [`LOST`], the oldest first. Each has the time until the answer;
    /// `None`: the request was lost.
    requests: VecDeque<(Target, Option<Duration>)>,
    /// Reason why the last request was not sent.
    not_sent: Option<&'static str>,
    /// Number of successive requests that were not sent, for example because the rail has no peers.
    unsent: u32,
}

impl Watched {
    /// Counts a request that was not sent. After [`LOST`] such requests in succession, the state of the rail is
    /// unknown, and its verdict ends.
    fn miss(&mut self) {
        self.unsent += 1;
        if self.unsent >= LOST {
            self.judge = Judge::default();
            self.requests.clear();
        }
    }

    /// Returns true if the last request was sent, and a peer answered one of the last [`REQUESTS`] requests.
    fn is_answered(&self) -> bool {
        let mut last = self.requests.iter().rev().take(REQUESTS);
        let all_sent = self.unsent == 0 && !self.targets.is_empty();
        all_sent && last.any(|(_, time)| time.is_some())
    }
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The answer arrived after this time.
    Answered(Duration),
    Lost,
    /// The request could not be sent, for this reason. The outcome says nothing about the fabric.
    NotSent(&'static str),
}

#[derive(Debug)]
pub(super) struct Watch {
    seed: u64,
    /// Number of groups in the next list.
    wanted: u32,
    /// Number of the present list.
    list: u64,
    peers: Vec<Arc<Peer>>,
    /// Number of groups in the list from which `peers` are.
    listed: u32,
    rails: Vec<Watched>,
    /// Largest percentage of the cluster's rails that may be unreachable when a rail becomes unhealthy. 0: no rail
    /// becomes unhealthy.
    percent: u8,
    /// Time without a renewal after which unreachable rails of another node do not count. The node is then probably
    /// off.
    renewal_timeout: Duration,
    /// Last renewal of each node with unreachable rails, and the time when it was first listed. The key is the hash of
    /// the node's name.
    renewals: BTreeMap<u64, (u64, Duration)>,
}

impl Watch {
    /// Returns the watch of the node whose name has the hash `seed`. `percent` is the largest percentage of unreachable
    /// rails with which a rail becomes unhealthy. After `renewal_timeout` without a renewal, a node's unreachable rails
    /// do not count.
    pub(super) fn new(seed: u64, percent: u8, renewal_timeout: Duration) -> Self {
        Self {
            seed,
            percent,
            renewal_timeout,
            renewals: BTreeMap::new(),
            wanted: 1,
            list: 0,
            peers: vec![],
            listed: 1,
            rails: vec![],
        }
    }

    /// Replaces the rails of this node. A rail that still exists keeps its verdict.
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
                    requests: VecDeque::new(),
                    not_sent: None,
                    unsent: 0,
                },
            });
        }
    }

    /// Applies the verdicts of this node's previous watch. The requests behind these verdicts are unknown.
    pub(super) fn had(&mut self, states: &[RailState]) {
        for state in states.iter().filter(|it| it.is_unreachable) {
            let mut rails = self.rails.iter_mut();
            if let Some(rail) = rails.find(|it| it.rail.device == state.device) {
                rail.judge = Judge {
                    last: 0,
                    requests: LOST,
                    is_unreachable: true,
                    is_unhealthy: state.is_unhealthy && self.percent > 0,
                };
            }
        }
    }

    pub(super) fn begin_list(&mut self) {
        self.list += 1;
    }

    pub(super) fn groups(&self) -> Vec<u32> {
        groups(self.seed, self.list, self.wanted).collect()
    }

    /// Stores the nodes of a list, without this node, and chooses the targets of the rails. If the list has too few
    /// nodes, stores nothing and returns false: the caller must repeat the list with more groups.
    pub(super) fn listed(&mut self, mut peers: Vec<Arc<Peer>>) -> bool {
        peers.retain(|it| it.hash != self.seed);
        let wanted = wanted_next(self.wanted, peers.len());
        let listed = std::mem::replace(&mut self.wanted, wanted);
        let is_enough = wanted <= listed;
        if is_enough {
            (self.peers, self.listed) = (peers, listed);
            for index in 0..self.rails.len() {
                self.rails[index].targets = self.targets(&self.rails[index].rail);
            }
        }
        is_enough
    }

    /// Returns the targets of `rail` in the order of its requests.
    fn targets(&self, rail: &FabricRail) -> Vec<Target> {
        let target = |peer: &Arc<Peer>| {
            let same = peer.rails.iter().find(|it| it.has_place_of(rail))?;
            let addresses = common(&rail.addresses, &same.addresses)?;
            Some((peer.hash, (peer.clone(), addresses)))
        };
        let targets = self.peers.iter().filter_map(target).collect();
        let seed = self.seed ^ mix(rail.number as u64) ^ mix(self.list);
        order(seed, targets)
    }

    /// Returns the indexes of the rails that send requests in this interval, in the order of sending. For a rail
    /// without targets, counts its requests as not sent.
    pub(super) fn round(&mut self) -> Vec<usize> {
        let alone = self.rails.iter_mut().filter(|it| it.targets.is_empty());
        alone.for_each(|rail| (0..REQUESTS).for_each(|_| rail.miss()));
        let rails = (0..self.rails.len()).filter(|it| !self.rails[*it].targets.is_empty());
        let rails: Vec<usize> = rails.collect();
        rails.repeat(REQUESTS)
    }

    /// Returns the own address and the peer's address for the next request of `rail`.
    pub(super) fn target(&mut self, rail: usize) -> Option<(IpAddr, IpAddr)> {
        let rail = self.rails.get_mut(rail)?;
        let target = rail.targets.get(rail.turn % rail.targets.len().max(1))?;
        rail.turn += 1;
        Some(target.1)
    }

    /// Applies the outcome of the last request of `rail`. If an answered or lost request changed the rail's verdict,
    /// returns the new verdict: true for unreachable.
    pub(super) fn take(&mut self, rail: usize, outcome: Outcome) -> Option<bool> {
        let rail = self.rails.get_mut(rail)?;
        let before = rail.judge.is_unreachable;
        rail.not_sent = None;
        let time = match outcome {
            Outcome::Answered(time) => Some(time),
            Outcome::Lost => None,
            Outcome::NotSent(why) => {
                rail.not_sent = Some(why);
                rail.miss();
                return None;
            }
        };
        rail.unsent = 0;
        rail.judge.take(time.is_some());
        let last = rail.turn.wrapping_sub(1) % rail.targets.len().max(1);
        if let Some(target) = rail.targets.get(last) {
            rail.requests.retain(|it| it.0.0.hash != target.0.hash);
            rail.requests.push_back((target.clone(), time));
            let surplus = rail.requests.len().saturating_sub(LOST as usize);
            rail.requests.drain(..surplus);
        }
        let after = rail.judge.is_unreachable;
        (before != after).then_some(after)
    }

    pub(super) fn device(&self, rail: usize) -> &str {
        self.rails.get(rail).map_or("", |it| &it.rail.device)
    }

    pub(super) fn states(&self) -> Vec<RailState> {
        let state = |it: &Watched| RailState {
            device: it.rail.device.clone(),
            is_unreachable: it.judge.is_unreachable,
            is_unhealthy: it.judge.is_unhealthy,
            peers: it.targets.len(),
            not_asked: it.not_sent.map(str::to_owned),
            requests: it.requests.iter().rev().map(last_request).collect(),
        };
        self.rails.iter().map(state).collect()
    }

    /// Returns this node's rails with their verdicts, for other nodes.
    pub(super) fn own(&self) -> Vec<FabricRail> {
        let own = |it: &Watched| FabricRail {
            is_unreachable: it.judge.is_unreachable,
            ..it.rail.clone()
        };
        self.rails.iter().map(own).collect()
    }

    /// Returns true if a rail of this node may become unhealthy: the rail is at fault, and few rails of the last list's
    /// peers are unreachable. The caller then reads the list of all unreachable rails. Without this check, all nodes
    /// would read the list when all rails are unreachable. `now` is a time of any clock that does not jump.
    pub(super) fn is_in_doubt(&mut self, now: Duration) -> bool {
        let unreachable = self.unreachable(&self.peers.clone(), now);
        let rails = self.peers.iter().map(|it| it.rails.len()).sum();
        let is_new = |it: &Watched| !it.judge.is_unhealthy && self.is_at_fault(it);
        self.rails.iter().any(is_new) && self.has_room(unreachable, rails)
    }

    /// Returns the number of unreachable rails of `nodes`. Leaves out the rails of other nodes without a recent
    /// renewal.
    fn unreachable(&mut self, nodes: &[Arc<Peer>], now: Duration) -> usize {
        let mut unreachable = 0;
        for node in nodes.iter().filter(|it| it.unreachable() > 0) {
            let news = (node.renewal, now);
            let known = self.renewals.entry(node.hash).or_insert(news);
            if known.0 != node.renewal {
                *known = news;
            }
            if node.hash == self.seed || now.saturating_sub(known.1) < self.renewal_timeout {
                unreachable += node.unreachable();
            }
        }
        unreachable
    }

    /// Applies the list of nodes with unreachable rails. This node's rails in the list become unhealthy if they are
    /// still at fault and the number of unreachable rails is within the allowed percentage.
    ///
    /// Two nodes may publish a verdict at the same time. The list of at least one of them then contains the other's
    /// rail. Both nodes together therefore stay within the allowed percentage.
    pub(super) fn take_unreachable(&mut self, nodes: &[Arc<Peer>], now: Duration) {
        let unreachable = self.unreachable(nodes, now);
        let peers: usize = self.peers.iter().map(|it| it.rails.len()).sum();
        if !self.has_room(unreachable, cluster(peers, self.listed) + self.rails.len()) {
            return;
        }
        let listed = nodes.iter().filter(|it| it.hash == self.seed);
        let listed: Vec<&FabricRail> = listed.flat_map(|it| &it.rails).collect();
        let is_listed = |rail: &FabricRail| {
            let mut listed = listed.iter();
            listed.any(|it| it.is_unreachable && it.is_same(rail))
        };
        let falls = |it: &Watched| is_listed(&it.rail) && self.is_at_fault(it);
        let falls: Vec<bool> = self.rails.iter().map(falls).collect();
        for (rail, falls) in self.rails.iter_mut().zip(falls) {
            rail.judge.is_unhealthy |= falls;
        }
    }

    /// Returns true if `unreachable` of `rails` rails are within the allowed percentage. One unreachable rail is always
    /// allowed.
    fn has_room(&self, unreachable: usize, rails: usize) -> bool {
        self.percent > 0 && unreachable <= (rails * usize::from(self.percent) / 100).max(1)
    }

    /// Returns true if the lost requests are the rail's own fault. This is so in two cases: the rail reaches none of at
    /// least 12 peers; or it reaches none of at least two peers, while another rail of this node gets answers. A single
    /// peer is not enough, because it may be dead. A rail with an answer in the last interval is not at fault: after a
    /// reboot of all peers, the node's rails get their second answers one after the other.
    fn is_at_fault(&self, rail: &Watched) -> bool {
        let peers = rail.targets.len();
        let reaches = |it: &Watched| !it.judge.is_unreachable && it.is_answered();
        let is_enough = peers >= LOST as usize || peers > 1 && self.rails.iter().any(reaches);
        rail.judge.is_unreachable && !rail.is_answered() && is_enough
    }

    pub(super) fn group(&self) -> u32 {
        group(self.seed)
    }
}

fn last_request((target, time): &(Target, Option<Duration>)) -> LastRequest {
    let (peer, (_, address)) = target;
    LastRequest {
        node: peer.node.clone(),
        address: *address,
        seconds: time.map(|it| it.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests;
