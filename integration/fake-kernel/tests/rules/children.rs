// SPDX-License-Identifier: Apache-2.0
//! Children whose parent is removed or moves.

use super::*;

fn child<'a>(world: &'a World, pod: NetnsId, name: &str) -> &'a Link {
    world.link(pod, name).expect("a netdev of the pod")
}

#[test]
fn a_child_ends_with_its_namespace_or_its_parent() {
    let (mut world, pod) = exclusive();
    make(&mut world, add_child("eth0", BRIDGE, "eth0"));
    world.unplug("0000:01:00.0");
    assert!(world.link(pod, "eth0").is_none());
    make(&mut world, add_child("eth1", BRIDGE, "rdma1"));
    world.unmount("/run/netns/pod");
    assert_eq!(world.links(HOST).len(), 2);
    assert_eq!(
        errno(&mut world, remove_link(AT, "eth1")),
        Errno::EOPNOTSUPP
    );
}

#[test]
fn a_child_stays_linked_when_its_parent_moves() {
    let (mut world, pod) = exclusive();
    make(&mut world, add_child("eth1", BRIDGE, "rdma0"));
    make(&mut world, add_child("eth0", BRIDGE, "rdma1"));
    make(&mut world, into_pod("eth1", "eth1"));
    // the index of `eth1` on the host is taken in the pod
    let eth1 = child(&world, pod, "eth1").index;
    assert_ne!(eth1, 3);
    assert_eq!(child(&world, pod, "rdma0").lower, Some(eth1));
    make(&mut world, to_host("eth1", "eth1"));
    assert_eq!(
        child(&world, pod, "rdma0").lower,
        Some(host(&world, "eth1").index)
    );
}
