// SPDX-License-Identifier: Apache-2.0
//! A cluster of 5,000 nodes with two rails each. Choice and verdicts are the program's own; fabric and API server are
//! modelled. A silent request is repeated once, as the program does.

use super::{
    FabricRail,
    choice::{GROUPS, group, mix},
    watch::{Outcome, Peer, Watch},
};
use std::{collections::BTreeMap, net::IpAddr, ops::Range, sync::Arc};

const NODES: usize = 5000;
const RAILS: usize = 2;
const RACK: usize = 32;
/// Rounds of 30 s between two lists.
const LIST: u64 = 20;
const ROUNDS: u64 = 24;
/// Rounds in which something is broken.
const FAULT: Range<u64> = 6..18;

/// Outcome of a run.
#[derive(Debug, Default)]
struct Run {
    /// Round of the fault in which a rail became unreachable, from 1, by node and rail.
    seen: BTreeMap<(usize, usize), u64>,
    /// Round after the repair in which it was reachable again, from 1.
    back: BTreeMap<(usize, usize), u64>,
    /// Verdicts that ended during the fault.
    flaps: u32,
    packets: u64,
    /// Most packets of a node in a round, and most that reached a node in a round.
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

/// `works` says whether a packet passes from one node to another on a rail during the fault. One of `loss` packets is lost
/// at any time; 0: none. With `jumps`, the clock of each twentieth node jumps in each round: the node does not know any more
/// when it listed, and lists at once.
fn run(works: impl Fn(usize, usize, usize) -> bool, loss: u64, jumps: bool) -> Run {
    let hash = |node: usize| mix(node as u64 ^ 77);
    let rails = |node: usize| -> Vec<FabricRail> {
        let rail = |number: usize| FabricRail {
            resource: "rdma/hca".to_owned(),
            number,
            device: String::new(),
            addresses: vec![address(node, number)],
        };
        (0..RAILS).map(rail).collect()
    };
    let mut members: Vec<Vec<Arc<Peer>>> = vec![vec![]; GROUPS as usize];
    for node in 0..NODES {
        let (hash, rails) = (hash(node), rails(node));
        members[group(hash) as usize].push(Arc::new(Peer { hash, rails }));
    }
    let mut nodes: Vec<Watch> = (0..NODES).map(|it| Watch::new(hash(it))).collect();
    for (number, node) in nodes.iter_mut().enumerate() {
        node.has(rails(number));
    }
    let (mut run, mut dice) = (Run::default(), 42);
    for round in 0..ROUNDS {
        let mut received = vec![0; NODES];
        for (number, node) in nodes.iter_mut().enumerate() {
            let seed = hash(number);
            let has_jumped = jumps && mix(seed ^ round).is_multiple_of(20);
            if round == 0 || round % LIST == seed % LIST || has_jumped {
                node.begin_list();
                loop {
                    let groups = node.groups();
                    let groups = groups.iter().flat_map(|it| &members[*it as usize]);
                    let list: Vec<Arc<Peer>> = groups.cloned().collect();
                    run.lists += 1;
                    run.longest_list = run.longest_list.max(list.len());
                    if node.listed(list) {
                        break;
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
                    !is_lost && (!FAULT.contains(&round) || works(number, other, rail))
                };
                let outcome = match is_answered() || is_answered() {
                    true => Outcome::Answered,
                    false => Outcome::Lost,
                };
                let key = (number, rail);
                match node.take(rail, outcome) {
                    Some(true) => {
                        run.seen.entry(key).or_insert(round + 1 - FAULT.start);
                    }
                    Some(false) if round >= FAULT.end => {
                        run.back.insert(key, round + 1 - FAULT.end);
                    }
                    Some(false) => run.flaps += 1,
                    None => {}
                }
            }
            run.packets += u64::from(sent);
            run.most[0] = run.most[0].max(sent);
        }
        run.most[1] = run.most[1].max(received.into_iter().max().expect("nodes"));
    }
    run
}

/// Only the dead rail is unreachable, after 6 rounds, and reachable 1 round after its repair.
#[test]
fn a_dead_rail() {
    let run = run(
        |from, to, rail| rail != 1 || (from != 17 && to != 17),
        0,
        false,
    );
    assert_eq!(run.seen, [((17, 1), 6)].into());
    assert_eq!(run.back, [((17, 1), 1)].into());
    // 4 packets of a node in a round
    assert_eq!((run.packets, run.most), (480_045, [6, 19]));
    assert_eq!((run.lists, run.longest_list), (17_056, 105));
}

/// All rails of the rack, and no others, are unreachable.
#[test]
fn a_dead_rack_switch() {
    let is_dead = |node: usize| node / RACK == 5;
    let run = run(|from, to, _| !is_dead(from) && !is_dead(to), 0, false);
    assert!(run.seen.keys().all(|(node, _)| is_dead(*node)));
    assert_eq!([run.seen.len(), run.back.len()], [RACK * RAILS; 2]);
    assert_eq!([Run::latest(&run.seen), Run::latest(&run.back)], [6, 1]);
    assert_eq!((run.packets, run.most), (483_098, [8, 22]));
}

/// A tenth of the nodes is separated, and its rails still reach a tenth of their peers: most of them are unreachable at some
/// time. The other nodes' rails are not.
#[test]
fn a_partition() {
    let is_small = |node: usize| node < NODES / 10;
    let run = run(|from, to, _| is_small(from) == is_small(to), 0, false);
    assert!(run.seen.keys().all(|(node, _)| is_small(*node)));
    assert_eq!((run.seen.len(), run.flaps), (605, 151));
    assert_eq!((run.packets, run.most), (523_889, [8, 32]));
}

/// With 1 % loss and clocks that jump, only the dead rail is unreachable.
#[test]
fn loss_and_clocks_that_jump() {
    let run = run(
        |from, to, rail| rail != 1 || (from != 17 && to != 17),
        100,
        true,
    );
    assert_eq!(run.seen, [((17, 1), 6)].into());
    assert_eq!(run.back, [((17, 1), 1)].into());
    assert_eq!((run.packets, run.most), (484_903, [7, 19]));
    assert_eq!(run.lists, 22_962);
}
