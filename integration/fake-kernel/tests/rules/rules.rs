// SPDX-License-Identifier: Apache-2.0
//! Routing rules.

use super::*;
use conformance::ops::rule;
use rdma_netns::Rule;

fn add(rule: &Rule) -> Op {
    let (at, rule) = (NetnsSide::Pod, rule.clone());
    Op::AddRule { at, rule }
}

#[test]
fn a_rule_ends_with_its_namespace() {
    let (mut world, pod) = exclusive();
    make(&mut world, add(&rule("10.0.0.5/32", 9)));
    assert_eq!(world.rules(pod).len(), 1);
    world.unmount("/run/netns/pod");
    assert_eq!(world.rules(pod), []);
}
