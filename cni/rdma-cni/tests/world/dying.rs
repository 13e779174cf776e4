// SPDX-License-Identifier: Apache-2.0
//! Tests that kill the process at every change of ADD and of DEL.

use crate::{
    node::{Node, Pod},
    smc::one_rail_with_smc,
    vf::one_rail_set_up,
};
use fake_kernel::{Snapshot, Verdict};
use rdma_netns::RdmaMode;
use serde_json::Value;

const CONFIGS: [fn(&Node) -> Value; 4] = [
    Node::two_rails,
    Node::one_rail,
    one_rail_with_smc,
    one_rail_set_up,
];

/// The verb that runs after the killed one.
#[derive(Clone, Copy, Debug)]
enum Restorer {
    Del,
    AddOfAnother,
    Gc,
}

const RESTORERS: [Restorer; 3] = [Restorer::Del, Restorer::AddOfAnother, Restorer::Gc];

/// State of the pod's namespace when the [`Restorer`] runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Namespace {
    Lives,
    Dies,
}

fn restore(
    node: &Node,
    restorer: Restorer,
    (pod, other): (&Pod, &Pod),
    config: &Value,
    before: &Snapshot,
    what: &str,
) {
    match restorer {
        Restorer::Del => {
            node.del(pod, config).must_succeed();
        }
        Restorer::Gc => {
            node.gc(&[], config).must_succeed();
        }
        Restorer::AddOfAnother => {
            let answer = node.add(other, config);
            if answer.code() == 101 {
                // a running pod keeps its devices until its DEL has ended
                assert!(
                    answer.message().contains("container a"),
                    "{what}: {answer:?}"
                );
                assert!(
                    node.kernel
                        .with(|world| world.namespace_at(&pod.netns).is_some())
                );
                node.del(pod, config).must_succeed();
                node.must_be(before, what);
                return;
            }
            assert_eq!(answer.code(), 0, "{what}: {}", answer.value);
            node.del(other, config).must_succeed();
            // the runtime finally deletes every pod that it has started
            node.del(pod, config).must_succeed();
        }
    }
    node.must_be(before, what);
}

/// A verb that the test kills. `after_add` is true if an ADD succeeds before this verb.
struct Killed {
    config: fn(&Node) -> Value,
    verb: &'static str,
    after_add: bool,
}

impl Killed {
    /// Kills the verb before and after its first change, then before and after its second change, and so on. Returns
    /// the number of its changes.
    fn everywhere(&self) -> usize {
        for at in 1.. {
            for namespace in [Namespace::Lives, Namespace::Dies] {
                for restorer in RESTORERS {
                    for verdict in [Verdict::DieBefore, Verdict::DieAfter] {
                        if !self.once(at, verdict, namespace, restorer) {
                            return at - 1;
                        }
                    }
                }
            }
        }
        0
    }

    fn once(&self, at: usize, verdict: Verdict, namespace: Namespace, restorer: Restorer) -> bool {
        let node = Node::new(RdmaMode::Exclusive);
        let other = node.pod("b");
        let mut before = node.snapshot();
        let pod = node.pod("a");
        if namespace == Namespace::Lives {
            before = node.snapshot();
        }
        let config = (self.config)(&node);
        if self.after_add {
            node.add(&pod, &config).must_succeed();
        }
        let run = |node: &Node| drop(node.run(self.verb, Some(&pod), &config));
        if !node.kill(at, verdict, run) {
            return false;
        }
        if namespace == Namespace::Dies {
            node.kernel.with(|world| world.unmount(&pod.netns));
        }
        let what = format!(
            "{} {verdict:?} {at}, namespace {namespace:?}, {restorer:?}",
            self.verb
        );
        restore(&node, restorer, (&pod, &other), &config, &before, &what);
        true
    }
}

#[test]
fn add_is_killed_at_any_change() {
    let verb = "ADD";
    for config in CONFIGS {
        let changes = Killed {
            config,
            verb,
            after_add: false,
        }
        .everywhere();
        assert!(changes > 5, "{changes}");
    }
}

#[test]
fn del_is_killed_at_any_change() {
    let verb = "DEL";
    for config in CONFIGS {
        let changes = Killed {
            config,
            verb,
            after_add: true,
        }
        .everywhere();
        assert!(changes > 10, "{changes}");
    }
}
