// SPDX-License-Identifier: Apache-2.0
//! Tests in which the kernel refuses one change of ADD, or also changes of the restore after it.

use crate::{
    node::{Node, Pod},
    smc::one_rail_with_smc,
    vf::one_rail_set_up,
};
use fake_kernel::{Snapshot, Verdict};
use nix::errno::Errno;
use rdma_netns::RdmaMode;
use serde_json::Value;

type Config = fn(&Node) -> Value;

const CONFIGS: [Config; 3] = [Node::two_rails, one_rail_with_smc, one_rail_set_up];

fn changes_of_add(config: Config) -> usize {
    let node = Node::new(RdmaMode::Exclusive);
    node.add(&node.pod("a"), &config(&node)).must_succeed();
    node.changes()
}

fn works_again(node: &Node, pod: &Pod, config: &Value, what: &str) {
    node.kernel.begin();
    let before = node.snapshot();
    node.add(pod, config).must_succeed();
    node.del(pod, config).must_succeed();
    node.must_be(&before, what);
}

#[test]
fn any_change_of_add_is_refused() {
    for (config, at) in every_change() {
        for verdict in [Verdict::Refuse(Errno::EIO), Verdict::Deceive(Errno::EIO)] {
            let node = Node::new(RdmaMode::Exclusive);
            let pod = node.pod("a");
            let before = node.snapshot();
            node.script(move |number| match number == at {
                true => verdict,
                false => Verdict::Proceed,
            });
            let config = config(&node);
            let answer = node.add(&pod, &config);
            let what = format!("change {at} {verdict:?}: {}", node.kernel.journal()[at - 1]);
            answer.must_fail(106);
            node.must_be(&before, &what);
            works_again(&node, &pod, &config, &what);
        }
    }
}

fn every_change() -> impl Iterator<Item = (Config, usize)> {
    let changes = |config: Config| (1..=changes_of_add(config)).map(move |at| (config, at));
    CONFIGS.into_iter().flat_map(changes)
}

/// A failed ADD, and the state of the world before it.
struct Failed {
    node: Node,
    pod: Pod,
    before: Snapshot,
    code: u64,
    config: Value,
}

impl Failed {
    /// Runs ADD. The kernel refuses change number `at`. Later changes are counted from 1: the kernel refuses those
    /// for which `refused` returns true.
    fn new(config: Config, at: usize, refused: impl Fn(usize) -> bool + Send + 'static) -> Self {
        Self::by(Errno::EIO, config, at, refused)
    }

    /// Runs [`Failed::new`] with `errno` as the refusal.
    fn by(
        errno: Errno,
        config: Config,
        at: usize,
        refused: impl Fn(usize) -> bool + Send + 'static,
    ) -> Self {
        let node = Node::new(RdmaMode::Exclusive);
        let pod = node.pod("a");
        let before = node.snapshot();
        node.script(
            move |number| match number == at || (number > at && refused(number - at)) {
                true => Verdict::Refuse(errno),
                false => Verdict::Proceed,
            },
        );
        let config = config(&node);
        let code = node.add(&pod, &config).code();
        Self {
            node,
            pod,
            before,
            code,
            config,
        }
    }
}

#[test]
fn any_change_of_the_undoing_is_refused_once() {
    for (config, at) in every_change() {
        for undo in 1.. {
            let failed = Failed::new(config, at, move |number| number == undo);
            let what = format!("changes {at} and {undo} of its undoing");
            assert_eq!(failed.code, 106, "{what}");
            failed.node.must_be(&failed.before, &what);
            if failed.node.kernel.journal().len() < at + undo {
                break;
            }
        }
    }
}

/// While the machine lacks memory, the restore gives up no attribute.
#[test]
fn all_changes_of_the_undoing_from_any_on_are_refused() {
    for (config, at) in every_change() {
        for undo in 1.. {
            let Failed {
                node,
                pod,
                before,
                code,
                config,
            } = Failed::by(Errno::ENOBUFS, config, at, move |number| number >= undo);
            let what = format!("change {at}, and all from {undo} on of its undoing");
            node.kernel.begin();
            if code == 106 {
                node.must_be(&before, &what);
                break;
            }
            assert_eq!(code, 107, "{what}");
            node.del(&pod, &config).must_succeed();
            node.must_be(&before, &what);
        }
    }
}
