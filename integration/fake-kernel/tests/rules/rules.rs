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

fn remove(rule: &Rule) -> Op {
    let (at, rule) = (NetnsSide::Pod, rule.clone());
    Op::RemoveRule { at, rule }
}

#[test]
fn there_once_and_gone_once_in_the_kernels_order() {
    let (mut world, pod) = exclusive();
    let rules = [
        rule("fd00::5/128", 1),
        rule("10.0.0.5/32", 9),
        rule("10.0.0.6/32", 8),
    ];
    for rule in rules.iter().chain(&rules) {
        make(&mut world, add(rule));
    }
    let [six, nine, eight] = rules;
    assert_eq!(world.rules(pod), [eight.clone(), nine.clone(), six.clone()]);
    assert_eq!(world.observe(Some(pod)).pod.unwrap().rules.len(), 3);
    make(&mut world, remove(&eight));
    make(&mut world, remove(&eight));
    assert_eq!(world.rules(pod), [nine, six]);
    assert_eq!(world.rules(HOST), []);
}

#[test]
fn it_stays_when_the_netdev_goes_and_ends_with_the_namespace() {
    let (mut world, pod) = exclusive();
    make(&mut world, add_child("eth0", BRIDGE, "rdma0"));
    make(&mut world, add(&rule("10.0.0.5/32", 9)));
    make(&mut world, remove_link(NetnsSide::Pod, "rdma0"));
    assert_eq!(world.rules(pod).len(), 1);
    world.unmount("/run/netns/pod");
    assert_eq!(world.rules(pod), []);
}
