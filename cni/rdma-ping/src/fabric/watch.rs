// SPDX-License-Identifier: Apache-2.0
//! The rails of a node, their peers, and the verdicts. No I/O.

use super::{
    Asked, FabricRail, RailState,
    choice::{cluster, group, groups, mix, order, wanted_next},
};
use crate::rails::common;
use std::{collections::VecDeque, net::IpAddr, sync::Arc, time::Duration};

/// Requests of each rail in an interval.
const REQUESTS: usize = 2;
/// Number of requests in a row, to different peers if there are enough, whose loss makes a rail unreachable. With 8 and
/// without a second try, a loss of 20 % each way made 613 of 40,000 rails unreachable in a simulation.
const LOST: u32 = 12;
/// Answers to the last [`LOST`] requests after which the rail is reachable again.
const ANSWERED: u32 = 2;

/// A node whose rails can be asked.
#[derive(Debug)]
pub(super) struct Peer {
    /// Name of the node.
    pub(super) node: String,
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
    /// True if the daemon is to treat the rail as unhealthy, until it is reachable.
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

/// A peer, with own address and the peer's.
type Target = (Arc<Peer>, (IpAddr, IpAddr));

/// A rail of this node.
#[derive(Debug)]
struct Watched {
    rail: FabricRail,
    judge: Judge,
    /// Peers with own address and the peer's, in the order of the requests.
    targets: Vec<Target>,
    /// Number of the next request.
    turn: usize,
    /// The last [`LOST`] peers that were asked, with the times of their answers, the last one at the end.
    asked: VecDeque<(Target, Option<Duration>)>,
    /// Reason why the last request was not sent.
    not_asked: Option<&'static str>,
    /// Requests in a row that were not sent, also for want of peers.
    unsent: u32,
}

impl Watched {
    /// Counts a request that was not sent. After [`LOST`] in a row the verdict ends: nothing is known of the rail.
    fn miss(&mut self) {
        self.unsent += 1;
        if self.unsent >= LOST {
            self.judge = Judge::default();
            self.asked.clear();
        }
    }

    /// Returns true if a peer answered in the last interval.
    fn is_answered(&self) -> bool {
        let mut last = self.asked.iter().rev().take(REQUESTS);
        let is_asked = self.unsent == 0 && !self.targets.is_empty();
        is_asked && last.any(|(_, time)| time.is_some())
    }
}

/// End of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The answer came after this time.
    Answered(Duration),
    Lost,
    /// The request could not be sent, for this reason. It says nothing about the fabric.
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
    /// Largest share of the cluster's rails that may be unreachable for a rail to become unhealthy, percent. 0: none becomes
    /// unhealthy.
    percent: u8,
}

impl Watch {
    /// Returns the watch of the node whose name has this hash, with the largest share of unreachable rails.
    pub(super) fn new(seed: u64, percent: u8) -> Self {
        Self {
            seed,
            percent,
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
                    asked: VecDeque::new(),
                    not_asked: None,
                    unsent: 0,
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

    /// Stores the nodes of a list, which may contain this node. Returns false if the list must be repeated with more
    /// groups.
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

    /// Returns the indexes of the rails that send a request in this interval, in the order of sending.
    pub(super) fn round(&mut self) -> Vec<usize> {
        let alone = self.rails.iter_mut().filter(|it| it.targets.is_empty());
        alone.for_each(|rail| (0..REQUESTS).for_each(|_| rail.miss()));
        let rails = (0..self.rails.len()).filter(|it| !self.rails[*it].targets.is_empty());
        let rails: Vec<usize> = rails.collect();
        rails.repeat(REQUESTS)
    }

    /// Returns own address and peer's address for the next request of `rail`.
    pub(super) fn target(&mut self, rail: usize) -> Option<(IpAddr, IpAddr)> {
        let rail = self.rails.get_mut(rail)?;
        let target = rail.targets.get(rail.turn % rail.targets.len().max(1))?;
        rail.turn += 1;
        Some(target.1)
    }

    /// Takes the end of the last request of `rail`. Returns the rail's new verdict, if it changed: true for unreachable.
    pub(super) fn take(&mut self, rail: usize, outcome: Outcome) -> Option<bool> {
        let rail = self.rails.get_mut(rail)?;
        let before = rail.judge.is_unreachable;
        rail.not_asked = None;
        let time = match outcome {
            Outcome::Answered(time) => Some(time),
            Outcome::Lost => None,
            Outcome::NotAsked(why) => {
                rail.not_asked = Some(why);
                rail.miss();
                return None;
            }
        };
        rail.unsent = 0;
        rail.judge.take(time.is_some());
        let last = rail.turn.wrapping_sub(1) % rail.targets.len().max(1);
        if let Some(target) = rail.targets.get(last) {
            rail.asked.retain(|it| it.0.0.hash != target.0.hash);
            rail.asked.push_back((target.clone(), time));
            let surplus = rail.asked.len().saturating_sub(LOST as usize);
            rail.asked.drain(..surplus);
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
            is_unhealthy: it.judge.is_unhealthy,
            peers: it.targets.len(),
            not_asked: it.not_asked.map(str::to_owned),
            asked: it.asked.iter().rev().map(asked).collect(),
        };
        self.rails.iter().map(state).collect()
    }

    /// Returns the own rails for other nodes, with their verdicts.
    pub(super) fn own(&self) -> Vec<FabricRail> {
        let own = |it: &Watched| FabricRail {
            is_unreachable: it.judge.is_unreachable,
            ..it.rail.clone()
        };
        self.rails.iter().map(own).collect()
    }

    /// Returns true if a rail of this node can become unhealthy, by the peers of the last list: few of their rails are
    /// unreachable. Without this, all nodes would read the list of unreachable rails when all of them are.
    pub(super) fn is_in_doubt(&self) -> bool {
        let rails = self.peers.iter().flat_map(|it| &it.rails);
        let unreachable = rails.clone().filter(|it| it.is_unreachable).count();
        let is_new = |it: &Watched| !it.judge.is_unhealthy && self.is_at_fault(it);
        self.rails.iter().any(is_new) && self.has_room(unreachable, rails.count())
    }

    /// Takes the nodes with unreachable rails, with this one, and decides which own rails become unhealthy: those of which
    /// the list has the verdict, if the list is short enough. A rail whose verdict was published later is counted here, or
    /// counts these: together they are never more than the share.
    pub(super) fn take_unreachable(&mut self, nodes: &[Arc<Peer>]) {
        let rails = nodes.iter().flat_map(|it| &it.rails);
        let unreachable = rails.filter(|it| it.is_unreachable).count();
        let peers: usize = self.peers.iter().map(|it| it.rails.len()).sum();
        if !self.has_room(unreachable, cluster(peers, self.wanted) + self.rails.len()) {
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

    /// Returns true if `unreachable` of `rails` are few enough. One always is.
    fn has_room(&self, unreachable: usize, rails: usize) -> bool {
        self.percent > 0 && unreachable <= (rails * usize::from(self.percent) / 100).max(1)
    }

    /// Returns true if the silence is the rail's own: the rail reaches none of at least 12 peers; or it reaches none of at
    /// least two, and another rail of this node is answered. One dead node is no evidence.
    fn is_at_fault(&self, rail: &Watched) -> bool {
        let peers = rail.targets.len();
        let reaches = |it: &Watched| !it.judge.is_unreachable && it.is_answered();
        let is_enough = peers >= LOST as usize || peers > 1 && self.rails.iter().any(reaches);
        rail.judge.is_unreachable && is_enough
    }

    /// Returns the group of this node.
    pub(super) fn group(&self) -> u32 {
        group(self.seed)
    }
}

fn asked((target, time): &(Target, Option<Duration>)) -> Asked {
    let (peer, (_, address)) = target;
    Asked {
        node: peer.node.clone(),
        address: *address,
        seconds: time.map(|it| it.as_secs_f64()),
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
            is_unreachable: false,
        }
    }

    const ANSWER: Outcome = Outcome::Answered(Duration::from_micros(250));

    fn watch(rails: Vec<FabricRail>, peers: Vec<Vec<FabricRail>>) -> Watch {
        let mut watch = Watch::new(7, 10);
        watch.has(rails);
        let peers = (0..).zip(peers);
        let peers: Vec<_> = peers
            .map(|(hash, rails)| {
                let node = format!("node-{hash}");
                Arc::new(Peer { node, hash, rails })
            })
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
        assert_eq!(watch.states()[0].not_asked.as_deref(), Some("no-route"));
        assert_eq!(watch.take(0, Outcome::Lost), Some(true));
        assert_eq!(watch.take(0, ANSWER), None);
        // the same rail with another address
        watch.has(vec![rail(0, &["10.0.0.3"])]);
        assert_eq!(
            watch.target(0).map(|it| it.0.to_string()).as_deref(),
            Some("10.0.0.3")
        );
        assert!(watch.states()[0].is_unreachable);
        assert_eq!(watch.take(0, ANSWER), Some(false));
        // in the namespace of a pod
        watch.has(vec![]);
        assert!(watch.round().is_empty() && watch.target(0).is_none());
    }

    /// A rail that cannot send requests, or has no peers, is not unhealthy for ever.
    #[test]
    fn a_verdict_ends_without_requests() {
        let node = |it: usize| vec![rail(0, &[&format!("10.0.1.{it}")])];
        for has_peers in [true, false] {
            let mut watch = watch(vec![rail(0, &["10.0.0.1"])], (0..20).map(node).collect());
            lose(&mut watch, 0);
            watch.take_unreachable(&listed(&watch));
            assert!(watch.states()[0].is_unhealthy);
            if !has_peers {
                while !watch.listed(vec![]) {}
            }
            for turn in 0..6 {
                assert!(watch.states()[0].is_unhealthy, "{turn}");
                for rail in watch.round() {
                    watch.take(rail, Outcome::NotAsked("no-route"));
                }
            }
            let state = watch.states().remove(0);
            assert!(!state.is_unhealthy && !state.is_unreachable);
        }
    }

    /// An answer of an earlier interval, or of one without requests, is no evidence for dead rails elsewhere.
    #[test]
    fn another_rail_is_answered_in_the_last_interval() {
        let own = || vec![rail(0, &["10.0.0.1"]), rail(1, &["10.1.0.1"])];
        let node = |it: usize| [0, 1].map(|rail| self::rail(rail, &[&format!("10.{rail}.1.{it}")]));
        for (later, is_in_doubt) in [
            (vec![Outcome::Lost], true),
            (vec![Outcome::Lost; 2], false),
            (vec![Outcome::NotAsked("no-route")], false),
        ] {
            let mut watch = watch(own(), (0..3).map(|it| node(it).to_vec()).collect());
            lose(&mut watch, 0);
            for outcome in [vec![ANSWER], later].concat() {
                watch.target(1);
                watch.take(1, outcome);
            }
            assert_eq!(watch.is_in_doubt(), is_in_doubt);
        }
    }

    /// The own ConfigMap of a watch, as node 7 of the list of nodes with unreachable rails.
    fn listed(watch: &Watch) -> Vec<Arc<Peer>> {
        let (node, rails) = ("node-7".to_owned(), watch.own());
        vec![Arc::new(Peer {
            node,
            hash: 7,
            rails,
        })]
    }

    fn lose(watch: &mut Watch, rail: usize) {
        for _ in 0..LOST {
            watch.target(rail);
            watch.take(rail, Outcome::Lost);
        }
    }

    /// One dead node is no evidence, nor are two without an answer to another rail.
    #[test]
    fn the_peers_are_not_dead_if_they_answer_another_rail_or_are_twelve() {
        for (peers, other_rail_is_answered, is_unhealthy) in [
            (1, true, false),
            (2, false, false),
            (2, true, true),
            (11, false, false),
            (12, false, true),
        ] {
            let own = vec![rail(0, &["10.0.0.1"]), rail(1, &["10.1.0.1"])];
            let peer =
                |it: usize| [0, 1].map(|rail| self::rail(rail, &[&format!("10.{rail}.1.{it}")]));
            // one of the nodes is this one
            let nodes = if peers > 7 { peers + 1 } else { peers };
            let mut watch = watch(own, (0..nodes).map(|it| peer(it).to_vec()).collect());
            if other_rail_is_answered {
                watch.target(1);
                watch.take(1, ANSWER);
            }
            let before = listed(&watch);
            lose(&mut watch, 0);
            watch.take_unreachable(&before);
            assert!(!watch.states()[0].is_unhealthy, "not published yet");
            assert_eq!(watch.is_in_doubt(), is_unhealthy, "{peers}");
            watch.take_unreachable(&listed(&watch));
            assert_eq!(watch.states()[0].is_unhealthy, is_unhealthy, "{peers}");
            assert!(!watch.states()[1].is_unhealthy);
            assert!(!watch.is_in_doubt());
            watch.take(0, ANSWER);
            watch.take(0, ANSWER);
            assert!(!watch.states()[0].is_unhealthy);
        }
    }

    /// One rail, or a tenth of the cluster's.
    #[test]
    fn a_larger_share_of_unreachable_rails_changes_no_health() {
        let peer = |it: usize| vec![rail(0, &[&format!("10.0.1.{it}")])];
        let others = |number: usize| {
            (100..).take(number).map(|hash| {
                let rails = vec![FabricRail {
                    is_unreachable: true,
                    ..rail(0, &[])
                }];
                Arc::new(Peer {
                    node: String::new(),
                    hash,
                    rails,
                })
            })
        };
        for (nodes, unreachable, is_unhealthy) in
            [(15, 0, true), (15, 1, false), (30, 2, true), (30, 3, false)]
        {
            let mut watch = watch(vec![rail(0, &["10.0.0.1"])], (0..nodes).map(peer).collect());
            lose(&mut watch, 0);
            let list = listed(&watch).into_iter().chain(others(unreachable));
            watch.take_unreachable(&list.collect::<Vec<_>>());
            assert_eq!(
                watch.states()[0].is_unhealthy,
                is_unhealthy,
                "{nodes} {unreachable}"
            );
        }
    }

    /// The page shows each peer once, the last one first.
    #[test]
    fn the_last_peers_are_kept() {
        let peer = |it: usize| vec![rail(0, &[&format!("10.0.1.{it}")])];
        let mut watch = watch(vec![rail(0, &["10.0.0.1"])], (0..4).map(peer).collect());
        let mut addresses = vec![];
        for number in 0..6 {
            addresses.insert(0, watch.target(0).expect("a peer").1);
            watch.take(0, if number == 5 { Outcome::Lost } else { ANSWER });
        }
        let asked = watch.states().remove(0).asked;
        let found: Vec<_> = asked.iter().map(|it| it.address).collect();
        assert_eq!(found, addresses[..4]);
        let times: Vec<_> = asked.iter().map(|it| it.seconds).collect();
        assert_eq!(times[..2], [None, Some(0.00025)]);
        assert_eq!(
            asked[0].node,
            format!(
                "node-{}",
                addresses[0]
                    .to_string()
                    .rsplit('.')
                    .next()
                    .expect("a number")
            )
        );
    }
}
