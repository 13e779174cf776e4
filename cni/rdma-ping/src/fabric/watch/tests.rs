// SPDX-License-Identifier: Apache-2.0
//! Tests of one watch's verdicts.

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

const RENEWAL_TIMEOUT: Duration = Duration::from_secs(1200);
const NOW: Duration = Duration::ZERO;
const ANSWER: Outcome = Outcome::Answered(Duration::from_micros(250));

fn watch(rails: Vec<FabricRail>, peers: Vec<Vec<FabricRail>>) -> Watch {
    let mut watch = Watch::new(7, 10, RENEWAL_TIMEOUT);
    watch.has(rails);
    let peers = (0..).zip(peers);
    let peers: Vec<_> = peers.map(|(hash, rails)| peer(hash, rails)).collect();
    while !watch.listed(peers.clone()) {}
    watch
}

fn peer(hash: u64, rails: Vec<FabricRail>) -> Arc<Peer> {
    let node = format!("node-{hash}");
    Arc::new(Peer {
        node,
        hash,
        rails,
        renewal: 0,
    })
}

/// The peers of a rail are other nodes' rails with the same number and address family.
#[test]
fn rails_meet_their_own_number_and_family() {
    let own = vec![rail(0, &["fd00::1", "10.0.0.1"]), rail(1, &["10.1.0.1"])];
    let peers = (0..8).map(|it| {
        let number = (it % 2) as usize;
        vec![rail(number, &[&format!("10.{number}.0.{}", it + 10)])]
    });
    let mut watch = watch(own, peers.collect());
    // node 7 is this node
    let counts: Vec<usize> = watch.states().iter().map(|it| it.peers).collect();
    assert_eq!(counts, [4, 3]);
    assert_eq!(watch.round(), [0, 1, 0, 1]);
    for _ in 0..8 {
        let (from, to) = watch.target(1).expect("a peer");
        assert_eq!(from.to_string(), "10.1.0.1");
        assert!(to.to_string().starts_with("10.1.0."), "{to}");
    }
}

/// In a cluster of two nodes, the only other node decides the verdict. A request that was not sent does not change the
/// verdict.
#[test]
fn twelve_losses_are_unreachable_and_two_answers_end_it() {
    let mut watch = watch(
        vec![rail(0, &["10.0.0.1"])],
        vec![vec![rail(0, &["10.0.0.2"])]],
    );
    for _ in 0..11 {
        assert_eq!(watch.take(0, Outcome::Lost), None);
        assert_eq!(watch.take(0, Outcome::NotSent("no-route")), None);
    }
    assert_eq!(watch.states()[0].not_asked.as_deref(), Some("no-route"));
    assert_eq!(watch.take(0, Outcome::Lost), Some(true));
    assert_eq!(watch.take(0, ANSWER), None);
    // the rail's address has changed
    watch.has(vec![rail(0, &["10.0.0.3"])]);
    assert_eq!(
        watch.target(0).map(|it| it.0.to_string()).as_deref(),
        Some("10.0.0.3")
    );
    assert!(watch.states()[0].is_unreachable);
    assert_eq!(watch.take(0, ANSWER), Some(false));
    // the rail is in the namespace of a pod
    watch.has(vec![]);
    assert!(watch.round().is_empty() && watch.target(0).is_none());
}

/// The verdict on a rail ends if the rail cannot send requests, or has no peers.
#[test]
fn a_verdict_ends_without_requests() {
    let node = |it: usize| vec![rail(0, &[&format!("10.0.1.{it}")])];
    for has_peers in [true, false] {
        let mut watch = watch(vec![rail(0, &["10.0.0.1"])], (0..20).map(node).collect());
        lose(&mut watch, 0);
        watch.take_unreachable(&listed(&watch), NOW);
        assert!(watch.states()[0].is_unhealthy);
        if !has_peers {
            while !watch.listed(vec![]) {}
        }
        for turn in 0..6 {
            assert!(watch.states()[0].is_unhealthy, "{turn}");
            for rail in watch.round() {
                watch.take(rail, Outcome::NotSent("no-route"));
            }
        }
        let state = watch.states().remove(0);
        assert!(!state.is_unhealthy && !state.is_unreachable);
    }
}

/// Another rail's answer proves that the peers are alive only if it is from the last interval.
#[test]
fn another_rail_is_answered_in_the_last_interval() {
    let own = || vec![rail(0, &["10.0.0.1"]), rail(1, &["10.1.0.1"])];
    let node = |it: usize| [0, 1].map(|rail| self::rail(rail, &[&format!("10.{rail}.1.{it}")]));
    for (later, is_in_doubt) in [
        (vec![Outcome::Lost], true),
        (vec![Outcome::Lost; 2], false),
        (vec![Outcome::NotSent("no-route")], false),
    ] {
        let mut watch = watch(own(), (0..3).map(|it| node(it).to_vec()).collect());
        lose(&mut watch, 0);
        for outcome in [vec![ANSWER], later].concat() {
            watch.target(1);
            watch.take(1, outcome);
        }
        assert_eq!(watch.is_in_doubt(NOW), is_in_doubt);
    }
}

/// Returns the list of nodes with unreachable rails. It contains only this watch's own ConfigMap, as node 7.
fn listed(watch: &Watch) -> Vec<Arc<Peer>> {
    let (node, rails) = ("node-7".to_owned(), watch.own());
    vec![Arc::new(Peer {
        node,
        hash: 7,
        rails,
        renewal: 0,
    })]
}

fn lose(watch: &mut Watch, rail: usize) {
    for _ in 0..LOST {
        watch.target(rail);
        watch.take(rail, Outcome::Lost);
    }
}

/// One peer that does not answer does not make a rail unhealthy. Two peers do if another rail gets answers, and twelve
/// do in any case.
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
        let peer = |it: usize| [0, 1].map(|rail| self::rail(rail, &[&format!("10.{rail}.1.{it}")]));
        // node 7 is this node, and therefore not a peer
        let nodes = if peers > 7 { peers + 1 } else { peers };
        let mut watch = watch(own, (0..nodes).map(|it| peer(it).to_vec()).collect());
        if other_rail_is_answered {
            watch.target(1);
            watch.take(1, ANSWER);
        }
        let before = listed(&watch);
        lose(&mut watch, 0);
        watch.take_unreachable(&before, NOW);
        assert!(!watch.states()[0].is_unhealthy, "not published yet");
        assert_eq!(watch.is_in_doubt(NOW), is_unhealthy, "{peers}");
        watch.take_unreachable(&listed(&watch), NOW);
        assert_eq!(watch.states()[0].is_unhealthy, is_unhealthy, "{peers}");
        assert!(!watch.states()[1].is_unhealthy);
        assert!(!watch.is_in_doubt(NOW));
        watch.take(0, ANSWER);
        watch.take(0, ANSWER);
        assert!(!watch.states()[0].is_unhealthy);
    }
}

/// All other nodes boot. A rail with its first answer is not at fault while another rail has its second one.
#[test]
fn a_rail_that_begins_to_recover_is_not_at_fault() {
    let own = vec![rail(0, &["10.0.0.1"]), rail(1, &["10.1.0.1"])];
    let node = |it: usize| [0, 1].map(|rail| self::rail(rail, &[&format!("10.{rail}.1.{it}")]));
    let mut watch = watch(own, (0..3).map(|it| node(it).to_vec()).collect());
    lose(&mut watch, 0);
    lose(&mut watch, 1);
    for rail in [1, 0, 1] {
        watch.target(rail);
        watch.take(rail, ANSWER);
    }
    let states = watch.states();
    assert!(states[0].is_unreachable && !states[1].is_unreachable);
    assert!(!watch.is_in_doubt(NOW));
    watch.take_unreachable(&listed(&watch), NOW);
    assert!(!watch.states()[0].is_unhealthy);
}

/// The allowed number of unreachable rails is a tenth of the cluster's rails, but at least one rail.
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
                renewal: 0,
            })
        })
    };
    for (nodes, unreachable, is_unhealthy) in
        [(15, 0, true), (15, 1, false), (30, 2, true), (30, 3, false)]
    {
        let mut watch = watch(vec![rail(0, &["10.0.0.1"])], (0..nodes).map(peer).collect());
        lose(&mut watch, 0);
        let list = listed(&watch).into_iter().chain(others(unreachable));
        watch.take_unreachable(&list.collect::<Vec<_>>(), NOW);
        assert_eq!(
            watch.states()[0].is_unhealthy,
            is_unhealthy,
            "{nodes} {unreachable}"
        );
    }
}

/// A list of 16 groups has so many peers that the next list needs only 8 groups. The cluster has about 2080 rails, of
/// which 208 may be unreachable.
#[test]
fn the_clusters_size_follows_from_the_groups_of_the_present_list() {
    let peers = |number: u64| {
        let address = |it| format!("10.0.1.{it}");
        let peers = (100..100 + number).map(|it| peer(it, vec![rail(0, &[&address(it)])]));
        peers.collect::<Vec<_>>()
    };
    for (unreachable, is_unhealthy) in [(200, true), (250, false)] {
        let mut watch = Watch::new(7, 10, RENEWAL_TIMEOUT);
        watch.has(vec![rail(0, &["10.0.0.1"])]);
        for _ in 0..4 {
            assert!(!watch.listed(peers(31)));
        }
        assert_eq!(watch.groups().len(), 16);
        assert!(watch.listed(peers(130)));
        assert_eq!(watch.groups().len(), 8);
        lose(&mut watch, 0);
        let fault = FabricRail {
            is_unreachable: true,
            ..rail(0, &[])
        };
        let mut nodes = listed(&watch);
        nodes.push(peer(1000, vec![fault; unreachable]));
        watch.take_unreachable(&nodes, NOW);
        let state = &watch.states()[0];
        assert_eq!(state.is_unhealthy, is_unhealthy, "{unreachable}");
    }
}

/// The rails of a node that was switched off do not count among the unreachable rails. The cluster has 15 rails.
#[test]
fn unreachable_rails_that_are_not_renewed_do_not_count() {
    let peer = |hash: usize, renewal: u64| {
        let address = format!("10.0.1.{hash}");
        let is_unreachable = hash == 3;
        let rails = vec![FabricRail {
            is_unreachable,
            ..rail(0, &[&address])
        }];
        let (node, hash) = (String::new(), hash as u64);
        Arc::new(Peer {
            node,
            hash,
            rails,
            renewal,
        })
    };
    for (is_renewed, is_unhealthy) in [(true, false), (false, true)] {
        let mut watch = watch(vec![rail(0, &["10.0.0.1"])], vec![]);
        for minutes in [0, 10, 20] {
            let renewal = if is_renewed { minutes } else { 0 };
            let peers = (0..15).map(|it| peer(it, renewal));
            while !watch.listed(peers.clone().collect()) {}
            lose(&mut watch, 0);
            let now = Duration::from_secs(60 * minutes);
            assert!(watch.is_in_doubt(now));
            let other = peers.filter(|it| it.hash == 3);
            let nodes: Vec<_> = listed(&watch).into_iter().chain(other).collect();
            watch.take_unreachable(&nodes, now);
            let expected = is_unhealthy && minutes == 20;
            assert_eq!(watch.states()[0].is_unhealthy, expected, "{minutes}");
        }
    }
}

/// A dead rail stays unhealthy during a roll-out of the watch. If the new settings allow no unhealthy rail, it becomes
/// healthy.
#[test]
fn a_verdict_outlives_its_watch() {
    let rails = || vec![rail(0, &["10.0.0.1"]), rail(1, &["10.1.0.1"])];
    let node = |it: usize| vec![rail(0, &[&format!("10.0.1.{it}")])];
    let mut before = watch(rails(), (0..20).map(node).collect());
    lose(&mut before, 0);
    before.take_unreachable(&listed(&before), NOW);
    for (percent, is_unhealthy) in [(10, true), (0, false)] {
        let mut watch = Watch::new(7, percent, RENEWAL_TIMEOUT);
        watch.has(rails());
        watch.had(&before.states());
        let states = watch.states();
        assert_eq!(states[0].is_unhealthy, is_unhealthy);
        assert!(states[0].is_unreachable && !states[1].is_unreachable);
        assert_eq!(watch.take(0, ANSWER), None);
        assert_eq!(watch.take(0, ANSWER), Some(false));
        assert!(!watch.states()[0].is_unhealthy);
    }
}

/// The state of a rail has each peer once, the latest peer first.
#[test]
fn the_last_peers_are_kept() {
    let peer = |it: usize| vec![rail(0, &[&format!("10.0.1.{it}")])];
    let mut watch = watch(vec![rail(0, &["10.0.0.1"])], (0..4).map(peer).collect());
    let mut addresses = vec![];
    for number in 0..6 {
        addresses.insert(0, watch.target(0).expect("a peer").1);
        watch.take(0, if number == 5 { Outcome::Lost } else { ANSWER });
    }
    let requests = watch.states().remove(0).requests;
    let found: Vec<_> = requests.iter().map(|it| it.address).collect();
    assert_eq!(found, addresses[..4]);
    let times: Vec<_> = requests.iter().map(|it| it.seconds).collect();
    assert_eq!(times[..2], [None, Some(0.00025)]);
    assert_eq!(
        requests[0].node,
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
