// SPDX-License-Identifier: Apache-2.0
//! Ends the process, as SIGKILL does, before and after every change of a bring-up and of a release.

use crate::{
    node::{NICS, Node, REFUSED, by_hand, changes, died, name},
    settling::{AT, address},
};
use erdma::{bring_up::release, conf};
use fake_kernel::Verdict;
use rdma_netns::{Address, LinkChange, Op, Route};

/// Kills the daemon with the configuration `conf`, or a release, at the change with the number `at`. Returns `None` if
/// the process ended before this change.
fn killed(node: Node, conf: Option<conf::BringUp>, at: usize, verdict: Verdict) -> Option<Node> {
    node.kernel.begin();
    let process = conf.map(|conf| node.process(conf));
    node.script(move |number| match number == at {
        true => verdict,
        false => Verdict::Proceed,
    });
    let nics = node.nics();
    let was_killed = match process {
        Some(process) => process.dies(&nics),
        None => died(|| drop(release(&node.kernel, node.state.path()))),
    };
    was_killed.then_some(node)
}

/// Kills the process of `conf` on a node of `start` at every change, and calls `finish` with the node. Returns the
/// number of kills.
fn sweep_from(
    start: impl Fn() -> Node,
    conf: Option<conf::BringUp>,
    finish: impl Fn(&Node, &str),
) -> usize {
    let mut kills = 0;
    for at in 1.. {
        for verdict in [Verdict::DieBefore, Verdict::DieAfter] {
            let Some(node) = killed(start(), conf.clone(), at, verdict) else {
                return kills;
            };
            kills += 1;
            finish(&node, &format!("{verdict:?} at change {at}"));
        }
    }
    kills
}

fn sweep(in_release: bool, finish: impl Fn(&Node, &str)) -> usize {
    match in_release {
        true => sweep_from(brought_up, None, finish),
        false => sweep_from(Node::new, Some(by_hand()), finish),
    }
}

fn brought_up() -> Node {
    let node = Node::new();
    node.settle(by_hand());
    node
}

/// Releases all NICs. Afterwards the node must be as `before`.
#[track_caller]
fn must_be_released(node: &Node, before: &fake_kernel::Snapshot, what: &str) {
    let released = node.release();
    assert!(
        released.iter().all(|it| it.is_complete()),
        "{what}: {released:?}"
    );
    node.must_be(before, what);
    assert_eq!(node.records(), [""; 0], "{what}");
}

/// Returns a configuration with another address of the first NIC, in the same network.
fn moved_to(address: &str) -> conf::BringUp {
    let mut conf = by_hand();
    conf.addresses[0].address = address.parse().expect("an address");
    conf
}

fn moved() -> conf::BringUp {
    moved_to("10.0.0.8/24")
}

fn route(to: [u8; 4], table: u32) -> Route {
    Route {
        table,
        ..Route::new(to.into(), 16)
    }
}

/// Returns a node whose first NIC has routes of another program, and an address of this program if `with_address` is
/// true. The kernel deletes all of them with the daemon's address.
fn shared(with_address: bool) -> Node {
    let node = brought_up();
    let mut routes = vec![
        route([10, 7, 0, 0], 254),
        Route {
            gateway: Some([10, 7, 0, 1].into()),
            ..route([10, 8, 0, 0], 77)
        },
    ];
    if with_address {
        node.make(&address(NICS[0].1, "10.0.0.66"));
        routes.push(Route {
            source: Some([10, 0, 0, 66].into()),
            ..route([10, 9, 0, 0], 254)
        });
    }
    for route in routes {
        let change = LinkChange::AddRoute(route);
        let link = name(NICS[0].1);
        node.make(&Op::Link {
            at: AT,
            link,
            change,
        });
    }
    node
}

#[test]
fn the_next_start_completes_a_killed_bring_up() {
    let wanted = brought_up().snapshot();
    let kills = sweep(false, |node, what| {
        changes(&node.settle(by_hand()));
        node.must_be(&wanted, what);
        assert_eq!(changes(&node.settle(by_hand())), [0, 0], "{what}");
    });
    assert_eq!(kills, 24);
}

#[test]
fn release_restores_after_a_killed_bring_up() {
    let before = Node::new().snapshot();
    let kills = sweep(false, |node, what| must_be_released(node, &before, what));
    assert_eq!(kills, 24);
}

#[test]
fn a_release_that_was_killed_is_completed_by_the_next() {
    let before = Node::new().snapshot();
    let kills = sweep(true, |node, what| must_be_released(node, &before, what));
    assert!(kills >= 24, "{kills}");
}

#[test]
fn after_a_release_that_was_killed_a_start_brings_all_up_again() {
    let before = Node::new().snapshot();
    sweep(true, |node, what| {
        changes(&node.settle(by_hand()));
        assert_eq!(changes(&node.settle(by_hand())), [0, 0], "{what}");
        node.release();
        node.must_be(&before, what);
    });
}

/// Returns a node whose first NIC also has an address of another program in another network.
fn beside_another() -> Node {
    let node = brought_up();
    node.make(&address(NICS[0].1, "10.5.0.9"));
    node
}

#[test]
fn configuration_of_others_outlasts_a_killed_change_of_the_address() {
    let starts: [(fn() -> Node, bool); 4] = [
        (brought_up, true),
        (beside_another, false),
        (|| shared(false), true),
        (|| shared(true), false),
    ];
    // the next start can have another configuration. The first address comes after an address of another program then
    let ends = [moved(), moved_to("10.0.0.9/24"), by_hand()];
    let cases = starts.iter().flat_map(|(start, keeps_order)| {
        let count = if *keeps_order { 3 } else { 2 };
        ends[..count].iter().map(move |end| (start, end))
    });
    for (start, end) in cases {
        let node = start();
        changes(&node.settle(end.clone()));
        let wanted = node.snapshot();
        let kills = sweep_from(start, Some(moved()), |node, what| {
            changes(&node.settle(end.clone()));
            node.must_be(&wanted, what);
            assert_eq!(changes(&node.settle(end.clone())), [0, 0], "{what}");
        });
        assert!(kills >= 10, "{kills}");
    }
}

/// The daemon is killed before its first change. The kernel has deleted nothing then.
#[test]
fn an_address_that_its_program_removes_meanwhile_stays_away() {
    let node = killed(shared(true), Some(moved()), 1, Verdict::DieBefore);
    let node = node.expect("a change");
    let address = Address::new([10, 0, 0, 66].into(), 24);
    node.make(&Op::Link {
        at: AT,
        link: name(NICS[0].1),
        change: LinkChange::RemoveAddress(address.clone()),
    });
    changes(&node.settle(moved()));
    let link = node.link(NICS[0].1).expect("a NIC");
    assert!(link.address(&address).is_none());
}

/// The killed release may have removed the daemon's address. The daemon's next start then completes the bring-up of each
/// NIC with a record, because the record lists what other programs lack.
#[test]
fn configuration_of_others_outlasts_a_killed_release() {
    for (with_address, is_started) in [(false, false), (false, true), (true, false), (true, true)] {
        let node = shared(with_address);
        node.release();
        let wanted = node.snapshot();
        let kills = sweep_from(
            || shared(with_address),
            None,
            |node, what| {
                if is_started {
                    let records = node.records();
                    let has_record = records.iter().any(|it| it.starts_with(NICS[0].0));
                    let outcomes = node.settle(by_hand());
                    if has_record {
                        changes(&outcomes[..1]);
                    }
                }
                must_be_released(node, &wanted, what);
            },
        );
        assert!(kills >= 24, "{kills}");
    }
}

/// The kernel refuses all changes from one change on, so that a start or a release fails. A later one succeeds.
#[test]
fn configuration_of_others_outlasts_a_failed_start_and_a_failed_release() {
    for is_release in [false, true] {
        let once = |node: &Node| match is_release {
            true => assert!(node.release().iter().all(|it| it.is_complete())),
            false => drop(changes(&node.settle(moved()))),
        };
        let node = shared(true);
        node.kernel.begin();
        once(&node);
        let (wanted, all) = (node.snapshot(), node.kernel.journal().len());
        assert!(all >= 10, "{all}");
        for at in 1..=all {
            let node = shared(true);
            node.kernel.begin();
            let process = (!is_release).then(|| node.process(moved()));
            node.script(move |number| match number >= at {
                true => REFUSED,
                false => Verdict::Proceed,
            });
            if let Some(mut process) = process {
                let outcomes = process.settle(&node.nics());
                // only routes of others are missing: the daemon reports them, and does not try again
                if at > all - 3 {
                    let remarks = &outcomes[0].remarks;
                    assert_eq!(remarks.len(), all + 1 - at, "{remarks:?}");
                    let expected = "the kernel refuses to restore what another program added to eth1: ip route append";
                    assert!(
                        remarks.iter().all(|it| it.starts_with(expected)),
                        "{remarks:?}"
                    );
                    continue;
                }
            } else {
                drop(release(&node.kernel, node.state.path()));
            }
            once(&node);
            node.must_be(
                &wanted,
                &format!("release {is_release}, from change {at} on"),
            );
        }
    }
}
