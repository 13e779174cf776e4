//! Every change of ADD, and of its undoing, is refused once.

use crate::node::{Node, Pod};
use fake_kernel::Verdict;
use nix::errno::Errno;
use rdma_netns::RdmaMode;

/// A node with a pod, and how many changes its ADD makes.
fn changes_of_add() -> usize {
    let node = Node::new(RdmaMode::Exclusive);
    node.add(&node.pod("a"), &node.two_rails()).must_succeed();
    node.kernel.journal().len()
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
            node.kernel.intercept(move |_, step| {
                if step.number == at {
                    verdict
                } else {
                    Verdict::Proceed
                }
            });
            let answer = node.add(&pod, &node.two_rails());
            let what = format!("change {at} {verdict:?}: {}", node.kernel.journal()[at - 1]);
            answer.must_fail(106);
            node.must_be(&before, &what);
            works_again(&node, &pod, &what);
        }
    }
}

#[test]
fn any_change_of_the_undoing_is_refused_too() {
    for at in 1..=changes_of_add() {
        for undo in 1.. {
            let node = Node::new(RdmaMode::Exclusive);
            let pod = node.pod("a");
            let before = node.snapshot();
            node.kernel.intercept(move |_, step| {
                if step.number == at || step.number >= at + undo {
                    Verdict::Refuse(Errno::EIO)
                } else {
                    Verdict::Proceed
                }
            });
            let answer = node.add(&pod, &node.two_rails());
            let what = format!("changes {at} and {undo} of its undoing");
            node.kernel.begin();
            if answer.code() == 106 {
                node.must_be(&before, &what);
                break;
            }
            answer.must_fail(107);
            node.del(&pod, &node.two_rails()).must_succeed();
            node.must_be(&before, &what);
        }
    }
}
