// SPDX-License-Identifier: Apache-2.0
//! Tests in which the kernel refuses changes of bring-up and release (one change, or all from one change on), or
//! refuses reads.

use crate::node::{Node, REFUSED, by_hand, changes};
use fake_kernel::Verdict;
use nix::errno::Errno;
use rdma_netns::Op;

fn changes_of_all() -> usize {
    let node = Node::new();
    node.settle(by_hand());
    node.kernel.journal().len()
}

#[test]
fn any_change_that_is_refused_once_is_made_at_the_next_turn() {
    let normal = Node::new();
    normal.settle(by_hand());
    let normal = normal.snapshot();
    for at in 1..=changes_of_all() {
        for verdict in [REFUSED, Verdict::Deceive(Errno::EIO)] {
            let node = Node::new();
            let mut process = node.process(by_hand());
            node.script(move |number| match number == at {
                true => verdict,
                false => Verdict::Proceed,
            });
            let outcomes = process.settle(&node.nics());
            let what = format!("change {at} {verdict:?}: {}", node.kernel.journal()[at - 1]);
            changes(&outcomes);
            // the first call continues without a setting that the kernel refused, and the second call sets it
            let outcomes = process.settle(&node.nics());
            changes(&outcomes);
            node.must_be(&normal, &what);
        }
    }
}

#[test]
fn from_any_change_on_all_are_refused_and_release_restores_the_done_ones() {
    for at in 1..=changes_of_all() {
        let node = Node::new();
        let before = node.snapshot();
        let mut process = node.process(by_hand());
        node.script(move |number| match number >= at {
            true => REFUSED,
            false => Verdict::Proceed,
        });
        let outcomes = process.settle(&node.nics());
        let refused = outcomes.iter().filter(|it| it.retry_after().is_some());
        assert!(refused.count() >= 1, "change {at}: {outcomes:?}");
        drop(process);
        let released = node.release();
        assert!(released.iter().all(|it| it.is_complete()), "{released:?}");
        node.must_be(&before, &format!("from change {at} on"));
        assert_eq!(node.records(), [""; 0]);
    }
}

#[test]
fn any_change_of_release_that_is_refused_once_is_made_again() {
    for at in 1.. {
        let node = Node::new();
        let before = node.snapshot();
        node.settle(by_hand());
        node.kernel.begin();
        node.script(move |number| match number == at {
            true => REFUSED,
            false => Verdict::Proceed,
        });
        let state = node.state.path();
        let released = erdma::bring_up::release(&node.kernel, state);
        assert!(released.expect("records").iter().all(|it| it.is_complete()));
        let journal: Vec<Op> = node.kernel.journal();
        node.must_be(&before, &format!("change {at}"));
        if journal.len() < at {
            assert!(at > 10, "{journal:?}");
            break;
        }
    }
}

#[test]
fn a_kernel_that_cannot_be_read_is_reported() {
    let node = Node::new();
    let before = node.snapshot();
    for blind in 1..=4 {
        let mut process = node.process(by_hand());
        node.kernel
            .blind(move |_, number| (number >= blind).then_some(Errno::EIO));
        let outcomes = process.settle(&node.nics());
        assert!(
            outcomes[1].to_string().contains("cannot read the links"),
            "{outcomes:?}"
        );
    }
    changes(&node.settle(by_hand()));
    node.release();
    node.must_be(&before, "released");
}
