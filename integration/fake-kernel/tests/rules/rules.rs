// SPDX-License-Identifier: Apache-2.0
//! Routing rules.

use super::*;
use rdma_netns::Rule;

fn rule(from: &str, priority: u32) -> Rule {
    let Address { ip, prefix, .. } = address(from);
    Rule {
        from: ip,
        prefix,
        table: 1000,
        priority,
    }
}

fn add(rule: &Rule) -> Op {
    let (at, rule) = (NetnsSide::Pod, rule.clone());
    Op::AddRule { at, rule }
}

#[test]
fn it_ends_with_the_namespace() {
    let (mut world, pod) = exclusive();
    make(&mut world, add(&rule("10.0.0.5/32", 9)));
    assert_eq!(world.rules(pod).len(), 1);
    world.unmount("/run/netns/pod");
    assert_eq!(world.rules(pod), []);
}
