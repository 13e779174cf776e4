// SPDX-License-Identifier: Apache-2.0
//! Simulates a cluster of 5,000 nodes with two rails each. Choice and verdicts use the program's own code. Fabric and
//! API server are modelled. As in the program, a request without an answer is repeated once, and an unreachable rail
//! becomes unhealthy while at most a tenth of the rails is unreachable.

use super::{
    FabricRail,
    choice::{GROUPS, group, mix},
    watch::{Outcome, Peer, Watch},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    ops::Range,
    sync::Arc,
    time::Duration,
};

const NODES: usize = 5000;
const RAILS: usize = 2;
const RACK: usize = 32;
/// Largest percentage of unreachable rails with which a rail becomes unhealthy.
const PERCENT: u8 = 10;
const SHARE: usize = NODES * RAILS / 10;
/// Number of rounds of 30 s between two lists.
const LIST: u64 = 20;
const ROUNDS: u64 = 24;
/// Rounds in which the fabric has its fault.
const FAULT: Range<u64> = 6..18;

#[derive(Debug, Default)]
struct Run {
    /// First round in which each rail was unreachable. The key is the node and the rail. Rounds count from 1, from the
    /// beginning of the fault.
    seen: BTreeMap<(usize, usize), u64>,
    /// Last round in which each rail became reachable again after the repair. The key is the node and the rail. Rounds
    /// count from 1, from the repair.
    back: BTreeMap<(usize, usize), u64>,
    /// Number of rails that became reachable again during the fault.
    flaps: u32,
    /// First round in which each rail was unhealthy. The key is the node and the rail. Rounds count from 1, from the
    /// beginning of the fault.
    unhealthy: BTreeMap<(usize, usize), u64>,
    /// Largest number of rails that were unreachable at one time, and of rails that were unhealthy at one time.
    at_once: [usize; 2],
    /// Number of lists of unreachable rails, and number of nodes in the longest of these lists.
    checks: [usize; 2],
    /// Number of unhealthy rails at the end.
    left: usize,
    packets: u64,
    /// Largest number of packets that a node sent in a round, and that a node received in a round.
    most: [u32; 2],
    longest_list: usize,
    lists: u64,
}

impl Run {
    fn latest(rounds: &BTreeMap<(usize, usize), u64>) -> u64 {
        rounds.values().copied().max().unwrap_or(0)
    }
}

fn address(node: usize, rail: usize) -> IpAddr {
    let node = u16::try_from(node).expect("a small number");
    let rail = u16::try_from(rail).expect("a small number");
    IpAddr::from([0xfd00, rail, 0, 0, 0, 0, 0, node])
}

fn node_of(address: IpAddr) -> usize {
    match address {
        IpAddr::V6(address) => usize::from(address.segments()[7]),
        IpAddr::V4(_) => panic!("{address} is no node's"),
    }
}

/// Runs the simulation.
///
/// - `works` returns true if a packet passes during the fault. Its arguments are the round of the fault (from 1), the
///   sending node, the receiving node and the rail.
/// - In all rounds, one of `loss` packets is lost (0: none).
/// - With `jumps`, a twentieth of the clocks jumps in each round. The nodes with these clocks list their peers at once.
fn run(works: impl Fn(u64, usize, usize, usize) -> bool, loss: u64, jumps: bool) -> Run {
    let hash = |node: usize| mix(node as u64 ^ 77);
    let rails = |node: usize| -> Vec<FabricRail> {
        let rail = |number: usize| FabricRail {
            resource: "rdma/hca".to_owned(),
            number,
            device: String::new(),
            addresses: vec![address(node, number)],
            is_unreachable: false,
        };
        (0..RAILS).map(rail).collect()
    };
    let config_map = |node: usize, rails: Vec<FabricRail>| {
        Arc::new(Peer {
            node: String::new(),
            hash: hash(node),
            rails,
            renewal: 0,
        })
    };
    let mut config_maps: Vec<_> = (0..NODES).map(|it| config_map(it, rails(it))).collect();
    let mut members: Vec<Vec<usize>> = vec![vec![]; GROUPS as usize];
    for node in 0..NODES {
        members[group(hash(node)) as usize].push(node);
    }
    let watch = |node: usize| Watch::new(hash(node), PERCENT, Duration::from_secs(1200));
    let mut nodes: Vec<Watch> = (0..NODES).map(watch).collect();
    // rounds of the lists that nodes request soon after a verdict
    let mut soon = vec![0; NODES];
    let (mut unreachable, mut unhealthy) = (BTreeSet::new(), BTreeSet::new());
    let mut published = BTreeSet::new();
    for (number, node) in nodes.iter_mut().enumerate() {
        node.has(rails(number));
    }
    let (mut run, mut dice) = (Run::default(), 42);
    for round in 0..ROUNDS {
        let mut received = vec![0; NODES];
        for (number, node) in nodes.iter_mut().enumerate() {
            let seed = hash(number);
            let has_jumped = jumps && mix(seed ^ round).is_multiple_of(20);
            let own = node.own();
            if own != config_maps[number].rails {
                match own.iter().any(|it| it.is_unreachable) {
                    true => published.insert(number),
                    false => published.remove(&number),
                };
                config_maps[number] = config_map(number, own);
            }
            let is_due = round % LIST == seed % LIST || round == soon[number];
            if is_due || has_jumped {
                node.begin_list();
                loop {
                    let groups = node.groups();
                    let groups = groups.iter().flat_map(|it| &members[*it as usize]);
                    let list: Vec<_> = groups.map(|it| config_maps[*it].clone()).collect();
                    run.lists += 1;
                    run.longest_list = run.longest_list.max(list.len());
                    if node.listed(list) {
                        break;
                    }
                }
                let now = Duration::from_secs(30 * round);
                if node.is_in_doubt(now) {
                    let list = published.iter().map(|it| config_maps[*it].clone());
                    let list: Vec<Arc<Peer>> = list.collect();
                    run.checks = [run.checks[0] + 1, run.checks[1].max(list.len())];
                    node.take_unreachable(&list, now);
                    let states = node.states().into_iter().enumerate();
                    for (rail, _) in states.filter(|it| it.1.is_unhealthy) {
                        unhealthy.insert((number, rail));
                        let since = round + 1 - FAULT.start;
                        run.unhealthy.entry((number, rail)).or_insert(since);
                    }
                }
            }
            let mut sent = 0;
            for rail in node.round() {
                let (_, to) = node.target(rail).expect("a peer");
                let other = node_of(to);
                let mut is_answered = || {
                    sent += 1;
                    received[other] += 1;
                    dice = mix(dice);
                    let is_lost = loss > 0 && dice.is_multiple_of(loss);
                    !is_lost
                        && (!FAULT.contains(&round)
                            || works(round + 1 - FAULT.start, number, other, rail))
                };
                let outcome = match is_answered() || is_answered() {
                    true => Outcome::Answered(Duration::ZERO),
                    false => Outcome::Lost,
                };
                let key = (number, rail);
                let verdict = node.take(rail, outcome);
                match verdict {
                    Some(true) => {
                        unreachable.insert(key);
                        run.seen.entry(key).or_insert(round + 1 - FAULT.start);
                    }
                    Some(false) => {
                        unreachable.remove(&key);
                        unhealthy.remove(&key);
                        match round >= FAULT.end {
                            true => drop(run.back.insert(key, round + 1 - FAULT.end)),
                            false => run.flaps += 1,
                        }
                    }
                    None => continue,
                }
                soon[number] = round + 2;
            }
            run.packets += u64::from(sent);
            run.most[0] = run.most[0].max(sent);
        }
        run.at_once[0] = run.at_once[0].max(unreachable.len());
        run.at_once[1] = run.at_once[1].max(unhealthy.len());
        run.left = unhealthy.len();
        run.most[1] = run.most[1].max(received.into_iter().max().expect("nodes"));
    }
    run
}

/// Only the dead rail becomes unreachable, after 6 rounds, and unhealthy, after 8 rounds. It is reachable 1 round after
/// its repair.
#[test]
fn a_dead_rail() {
    let run = run(
        |_, from, to, rail| rail != 1 || (from != 17 && to != 17),
        0,
        false,
    );
    assert_eq!(run.seen, [((17, 1), 6)].into());
    assert_eq!(run.back, [((17, 1), 1)].into());
    // without losses, a node sends 4 packets in a round
    assert_eq!((run.packets, run.most), (480_045, [6, 19]));
    assert_eq!((run.lists, run.longest_list), (17_058, 105));
    assert_eq!((run.unhealthy, run.left), ([((17, 1), 8)].into(), 0));
    assert_eq!((run.at_once, run.checks), ([1, 1], [1, 1]));
}

/// All rails of the rack become unreachable and unhealthy. No other rail does.
#[test]
fn a_dead_rack_switch() {
    let is_dead = |node: usize| node / RACK == 5;
    let run = run(|_, from, to, _| !is_dead(from) && !is_dead(to), 0, false);
    assert!(run.seen.keys().all(|(node, _)| is_dead(*node)));
    assert_eq!([run.seen.len(), run.back.len()], [RACK * RAILS; 2]);
    assert_eq!([Run::latest(&run.seen), Run::latest(&run.back)], [6, 1]);
    assert_eq!((run.packets, run.most), (483_098, [8, 22]));
    assert!(run.unhealthy.keys().eq(run.seen.keys()));
    assert_eq!((Run::latest(&run.unhealthy), run.left), (8, 0));
    assert_eq!((run.at_once, run.checks), ([64, 64], [32, 32]));
}

/// A tenth of the nodes is separated from the others. The rails of these nodes still reach a tenth of their peers, and
/// most of them are unreachable at some time. The rails of the other nodes stay reachable.
#[test]
fn a_partition() {
    let is_small = |node: usize| node < NODES / 10;
    let run = run(|_, from, to, _| is_small(from) == is_small(to), 0, false);
    assert!(run.seen.keys().all(|(node, _)| is_small(*node)));
    assert!(run.unhealthy.keys().all(|(node, _)| is_small(*node)));
    assert_eq!((run.seen.len(), run.flaps), (601, 142));
    assert_eq!((run.at_once, run.left), ([459, 332], 0));
    assert_eq!((run.packets, run.most), (523_863, [8, 32]));
}

/// With 1 % loss and clocks that jump, only the dead rail becomes unreachable.
#[test]
fn loss_and_clocks_that_jump() {
    let run = run(
        |_, from, to, rail| rail != 1 || (from != 17 && to != 17),
        100,
        true,
    );
    assert_eq!(run.seen, [((17, 1), 6)].into());
    assert_eq!(run.back, [((17, 1), 1)].into());
    assert_eq!((run.packets, run.most), (484_903, [7, 19]));
    assert_eq!(run.lists, 22_964);
    assert_eq!((run.unhealthy, run.left), ([((17, 1), 8)].into(), 0));
}

/// Racks die one after the other, three in a round, up to a quarter of all racks. The unhealthy rails stay within the
/// allowed percentage.
#[test]
fn dead_racks_beyond_the_share() {
    let is_dead = |round: u64, node: usize| (node / RACK) as u64 <= 3 * round;
    let run = run(
        |round, from, to, _| !is_dead(round, from) && !is_dead(round, to),
        0,
        false,
    );
    assert_eq!((run.at_once, run.left), ([1414, 792], 0));
    assert!(run.at_once[1] <= SHARE);
}

/// Each rail reaches a hundredth of the other rails. The first rails that detect this become unhealthy. Few nodes read
/// the list of all unreachable rails.
#[test]
fn a_fabric_in_pieces() {
    let run = run(|_, from, to, _| from % 100 == to % 100, 0, false);
    assert_eq!((run.at_once, run.left), ([9874, 50], 0));
    assert!(run.at_once[1] <= SHARE);
    assert_eq!(run.checks, [32, 992]);
}
