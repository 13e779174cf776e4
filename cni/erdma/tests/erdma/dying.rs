// SPDX-License-Identifier: Apache-2.0
//! Ends the process, as SIGKILL does, before and after every change of a bring-up and of a release.

use crate::node::{Node, by_hand, changes, died};
use erdma::bring_up::release;
use fake_kernel::Verdict;

/// Kills the daemon or a release at the change with the number `at`. Returns `None` if the process ended before this
/// change.
fn killed(at: usize, verdict: Verdict, in_release: bool) -> Option<Node> {
    let node = Node::new();
    let mut process = None;
    if in_release {
        node.settle(by_hand());
        node.kernel.begin();
    } else {
        process = Some(node.process(by_hand()));
    }
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

/// Kills the process at every change, and calls `finish` with the node. Returns the number of kills.
fn sweep(in_release: bool, finish: impl Fn(&Node, &str)) -> usize {
    let mut kills = 0;
    for at in 1.. {
        for verdict in [Verdict::DieBefore, Verdict::DieAfter] {
            let Some(node) = killed(at, verdict, in_release) else {
                return kills;
            };
            kills += 1;
            finish(&node, &format!("{verdict:?} at change {at}"));
        }
    }
    kills
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

fn settled() -> fake_kernel::Snapshot {
    let node = Node::new();
    node.settle(by_hand());
    node.snapshot()
}

#[test]
fn the_next_start_completes_a_killed_bring_up() {
    let wanted = settled();
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
