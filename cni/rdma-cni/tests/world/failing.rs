//! Every change of ADD, and of its undoing, is refused once.

use crate::node::{Node, Pod};
use fake_kernel::{Snapshot, Verdict};
use nix::errno::Errno;
use rdma_netns::RdmaMode;

/// A node with a pod, and how many changes its ADD makes.
fn changes_of_add() -> usize {
    let node = Node::new(RdmaMode::Exclusive);
    node.add(&node.pod("a"), &node.two_rails()).must_succeed();
    node.changes()
}

fn works_again(node: &Node, pod: &Pod, what: &str) {
    node.kernel.begin();
    let before = node.snapshot();
    node.add(pod, &node.two_rails()).must_succeed();
    node.del(pod, &node.two_rails()).must_succeed();
    node.must_be(&before, what);
}

#[test]
fn any_change_of_add_is_refused() {
    for at in 1..=changes_of_add() {
        for verdict in [Verdict::Refuse(Errno::EIO), Verdict::Deceive(Errno::EIO)] {
            let node = Node::new(RdmaMode::Exclusive);
            let pod = node.pod("a");
            let before = node.snapshot();
            node.script(move |number| match number == at {
                true => verdict,
                false => Verdict::Proceed,
            });
            let answer = node.add(&pod, &node.two_rails());
            let what = format!("change {at} {verdict:?}: {}", node.kernel.journal()[at - 1]);
            answer.must_fail(106);
            node.must_be(&before, &what);
            works_again(&node, &pod, &what);
        }
    }
}

/// An ADD that failed, and how the world was before it.
struct Failed {
    node: Node,
    pod: Pod,
    before: Snapshot,
    code: u64,
}

impl Failed {
    /// ADD whose change `at` is refused, and so is what `refused` says of the changes after
    /// it, counted from 1.
    fn new(at: usize, refused: impl Fn(usize) -> bool + Send + 'static) -> Self {
        let node = Node::new(RdmaMode::Exclusive);
        let pod = node.pod("a");
        let before = node.snapshot();
        node.script(
            move |number| match number == at || (number > at && refused(number - at)) {
                true => Verdict::Refuse(Errno::EIO),
                false => Verdict::Proceed,
            },
        );
        let code = node.add(&pod, &node.two_rails()).code();
        Self {
            node,
            pod,
            before,
            code,
        }
    }
}

#[test]
fn any_change_of_the_undoing_is_refused_once() {
    for at in 1..=changes_of_add() {
        for undo in 1.. {
            let failed = Failed::new(at, move |number| number == undo);
            let what = format!("changes {at} and {undo} of its undoing");
            assert_eq!(failed.code, 106, "{what}");
            failed.node.must_be(&failed.before, &what);
            if failed.node.kernel.journal().len() < at + undo {
                break;
            }
        }
    }
}

#[test]
fn all_changes_of_the_undoing_from_any_on_are_refused() {
    for at in 1..=changes_of_add() {
        for undo in 1.. {
            let Failed {
                node,
                pod,
                before,
                code,
            } = Failed::new(at, move |number| number >= undo);
            let what = format!("change {at}, and all from {undo} on of its undoing");
            node.kernel.begin();
            if code == 106 {
                node.must_be(&before, &what);
                break;
            }
            assert_eq!(code, 107, "{what}");
            node.del(&pod, &node.two_rails()).must_succeed();
            node.must_be(&before, &what);
        }
    }
}
