// SPDX-License-Identifier: Apache-2.0
//! Routing rules in the pod.

use crate::{Node, ops::*};
use rdma_netns::{Kernel, Op, Rule};

fn add_rule(rule: &Rule) -> Op {
    let (at, rule) = (POD, rule.clone());
    Op::AddRule { at, rule }
}

fn remove_rule(rule: &Rule) -> Op {
    let (at, rule) = (POD, rule.clone());
    Op::RemoveRule { at, rule }
}

fn seen(node: &Node<'_, impl Kernel>) -> Vec<Rule> {
    node.observe().pod.expect("the pod").rules
}

/// IPv4 rules come first, ordered by priority and then by age. Adding a rule twice, or removing a missing one, is no
/// error.
pub fn there_once_and_gone_once_in_the_kernels_order(node: &Node<'_, impl Kernel>) {
    assert_eq!(seen(node), []);
    let by = |table, rule: Rule| Rule { table, ..rule };
    let wanted = [
        by(200, rule("10.0.0.5/32", 100)),
        by(70_000, rule("10.1.0.0/16", 100)),
        rule("10.0.0.5/32", 101),
        Rule {
            to: Some((ip("10.1.0.0"), 16)),
            ..rule("10.0.0.5/32", 102)
        },
        rule("fd00::5/128", 99),
        by(255, rule("fd01::/64", 100)),
        by(1_000_000, rule("fd00::5/128", 40_000)),
    ];
    for at in [4, 0, 1, 2, 3, 6, 5].into_iter().chain(0..7) {
        node.make(add_rule(&wanted[at]));
    }
    assert_eq!(seen(node), wanted);
    assert_eq!(node.observe().host.rules, []);
    for (at, rule) in wanted.iter().enumerate() {
        node.make(remove_rule(rule));
        node.make(remove_rule(rule));
        assert_eq!(seen(node), wanted[at + 1..], "{rule:?}");
    }
}

/// A routing rule belongs to the namespace, and stays when its netdev is removed.
pub fn a_rule_stays_when_the_netdev_goes(node: &Node<'_, impl Kernel>) {
    node.make(add_child("nic0", BRIDGE, "rdma0"));
    node.make(add_rule(&rule("10.0.0.5/32", 9)));
    node.make(remove_link(POD, "rdma0"));
    assert_eq!(seen(node), [rule("10.0.0.5/32", 9)]);
}
