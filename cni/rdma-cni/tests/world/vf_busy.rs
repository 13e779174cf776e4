// SPDX-License-Identifier: Apache-2.0
//! Tests of virtual functions whose driver is busy, like ice and i40e during a reset of the function. Each setting
//! starts a reset, and the driver refuses the next change with `EBUSY` or `EAGAIN` (`src/apply/busy.rs`).

use crate::{
    node::{Node, mac},
    vf::one_rail_set_up,
};
use attachments::{Attribute, given_up};
use fake_kernel::Verdict;
use nix::errno::Errno;
use rdma_netns::{Kernel as _, LinkChange, Op, RdmaMode, VfSetting};
use std::{cell::RefCell, time::Duration};

type Kind = fn(&Op) -> bool;

const KINDS: [(&str, Kind); 4] = [
    ("the function's address", |op| {
        let Op::SetVf { setting, .. } = op else {
            return false;
        };
        matches!(setting, VfSetting::Mac(_))
    }),
    ("any setting", |op| matches!(op, Op::SetVf { .. })),
    ("the netdev's address", |op| {
        matches!(
            op,
            Op::Link {
                change: LinkChange::Mac(_),
                ..
            }
        )
    }),
    ("up", |op| {
        matches!(
            op,
            Op::Link {
                change: LinkChange::Up(true),
                ..
            }
        )
    }),
];

/// Makes the driver refuse each change of `kind` `times` times before it makes the change.
fn busy(node: &Node, kind: Kind, errno: Errno, times: usize) {
    node.kernel.begin();
    let refused: RefCell<Vec<Op>> = RefCell::default();
    node.kernel.intercept(move |_, step| {
        let mut refused = refused.borrow_mut();
        let before = refused.iter().filter(|op| *op == step.op).count();
        match kind(step.op) && before < times {
            true => {
                refused.push(step.op.clone());
                Verdict::Refuse(errno)
            }
            false => Verdict::Proceed,
        }
    });
}

/// Number of refusals in one second: one every 50 ms.
const A_SECOND: usize = 20;

#[test]
fn add_waits_for_a_function_that_is_reset() {
    for (what, kind) in KINDS {
        for errno in [Errno::EBUSY, Errno::EAGAIN] {
            let node = Node::new(RdmaMode::Exclusive);
            let (pod, config) = (node.pod("a"), one_rail_set_up(&node));
            let before = node.snapshot();
            busy(&node, kind, errno, A_SECOND);
            node.add(&pod, &config).must_succeed();
            let journal = node.kernel.journal();
            assert!(
                journal.iter().filter(|op| kind(op)).count() > A_SECOND,
                "{what}"
            );
            let netns = node.netns(&pod);
            let address = node
                .kernel
                .with(|world| world.link(netns, "rdma0").unwrap().mac.clone());
            assert_eq!(address, mac("ca:fe:c0:ff:ee:00"), "{what}");
            node.kernel.begin();
            node.del(&pod, &config).must_succeed();
            node.must_be(&before, what);
        }
    }
}

#[test]
fn add_does_not_wait_for_ever_and_undoes_what_it_did() {
    for (what, kind) in KINDS {
        let node = Node::new(RdmaMode::Exclusive);
        let (pod, config) = (node.pod("a"), one_rail_set_up(&node));
        let before = node.snapshot();
        // the driver refuses only the first change, again and again: the changes of the restore succeed
        node.kernel.begin();
        let mut first: Option<Op> = None;
        node.kernel.intercept(move |_, step| {
            let is_first =
                kind(step.op) && *first.get_or_insert_with(|| step.op.clone()) == *step.op;
            match is_first {
                true => Verdict::Refuse(Errno::EBUSY),
                false => Verdict::Proceed,
            }
        });
        let start = node.kernel.now();
        let message = node.add(&pod, &config).must_fail(106);
        assert!(message.contains("busy"), "{what}: {message}");
        let waited = node.kernel.now() - start;
        assert!(waited >= Duration::from_secs(2), "{what}: {waited:?}");
        assert!(waited < Duration::from_secs(6), "{what}: {waited:?}");
        node.must_be(&before, what);
    }
}

/// Without the wait, the next pod would have this pod's hardware address.
#[test]
fn del_waits_for_a_function_that_is_reset() {
    for (what, kind) in KINDS {
        let node = Node::new(RdmaMode::Exclusive);
        let (pod, config) = (node.pod("a"), one_rail_set_up(&node));
        let before = node.snapshot();
        node.add(&pod, &config).must_succeed();
        busy(&node, kind, Errno::EBUSY, A_SECOND);
        node.del(&pod, &config).must_succeed();
        node.must_be(&before, what);
    }
}

/// The first DEL reports the busy driver, and keeps the record. The next DEL gives up the setting, and writes a note
/// about the missing setting.
#[test]
fn a_function_that_stays_busy_keeps_a_pod_for_one_del() {
    let (what, kind) = KINDS[0];
    let node = Node::new(RdmaMode::Exclusive);
    let (pod, config) = (node.pod("a"), one_rail_set_up(&node));
    node.add(&pod, &config).must_succeed();
    busy(&node, kind, Errno::EBUSY, usize::MAX);
    let message = node.del(&pod, &config).must_fail(107);
    assert!(message.contains("busy"), "{what}: {message}");
    assert!(node.record_of(&pod).exists());
    busy(&node, kind, Errno::EBUSY, usize::MAX);
    node.del(&pod, &config).must_succeed();
    let notes = given_up::read(&node.state.path().join("state")).unwrap();
    let lacks: Vec<_> = notes.iter().flat_map(|it| &it.lacks).collect();
    assert!(
        matches!(&lacks[..], [lack] if matches!(lack.attribute, Attribute::Vf(_))),
        "{lacks:?}"
    );
}
