// SPDX-License-Identifier: Apache-2.0
//! Macvlan children of a host netdev, made in the pod. Ipvlan has its own module, because not every kernel under test
//! has it.

use crate::{Node, ops::*};
use nix::errno::Errno;
use rdma_netns::{Child, Kernel, LinkSetting, MacvlanMode, Op};

const PASSTHRU: Child = Child::Macvlan {
    mode: MacvlanMode::Passthru,
};

/// The new child is down. Its lower netdev is its parent on the host.
pub fn made_in_the_pod_with_a_mac_of_its_own(node: &Node<'_, impl Kernel>) {
    let before = node.observe().host.links;
    let parent = node.host("nic0");
    for (mode, called) in [
        (MacvlanMode::Bridge, "rdma0"),
        (MacvlanMode::Private, "rdma1"),
        (MacvlanMode::Vepa, "rdma2"),
    ] {
        let child = Child::Macvlan { mode };
        node.make(Op::AddChild {
            at: POD,
            parent: name("nic0"),
            child,
            name: name(called),
            mtu: 1400,
        });
        let made = node.pod(called);
        assert_eq!(made.kind.as_deref(), Some("macvlan"));
        assert_eq!((made.child, made.lower), (Some(child), Some(parent.index)));
        let origin = made.origin.expect("what it was made on");
        assert_eq!((origin.index, origin.vlan), (parent.index, 0));
        assert!(
            origin.netns >= 0,
            "{origin:?}: the host's number in the pod"
        );
        assert_eq!((made.mtu, made.up), (1400, false));
        assert_ne!(made.mac, parent.mac);
    }
    assert_ne!(node.pod("rdma0").mac, node.pod("rdma1").mac);
    assert_eq!(node.observe().host.links.len(), before.len());
    assert_eq!((parent.lower, parent.child), (None, None));
}

/// A child in the pod can have the name of a netdev of the host.
pub fn a_name_is_taken_in_the_pod_alone(node: &Node<'_, impl Kernel>) {
    let before = node.host("nic1");
    node.make(add_child("nic0", BRIDGE, "nic1"));
    assert_eq!(node.pod("nic1").child, Some(BRIDGE));
    assert_eq!(node.host("nic1"), before);
    for taken in ["nic1", "lo"] {
        let refused = node.refused(add_child("nic0", BRIDGE, taken));
        assert_eq!(refused, Errno::EEXIST, "{taken}");
    }
    node.make(into_pod("nic1", "rdma1"));
    let refused = node.refused(add_child("nic1", BRIDGE, "rdma0"));
    assert_eq!(refused, Errno::ENODEV);
}

/// A parent with a passthru child refuses more children, and a parent with a child refuses a passthru child. A passthru
/// child has its parent's hardware address (`macvlan_common_newlink()`, `drivers/net/macvlan.c`).
pub fn a_passthru_child_is_the_only_one(node: &Node<'_, impl Kernel>) {
    node.make(add_child("nic0", PASSTHRU, "rdma0"));
    assert_eq!(node.pod("rdma0").child, Some(PASSTHRU));
    assert_eq!(node.pod("rdma0").mac, node.host("nic0").mac);
    let refused = node.refused(add_child("nic0", BRIDGE, "rdma1"));
    assert_eq!(refused, Errno::EINVAL);
    node.make(add_child("nic1", BRIDGE, "rdma1"));
    let refused = node.refused(add_child("nic1", PASSTHRU, "rdma2"));
    assert_eq!(refused, Errno::EINVAL);
}

/// A child's MTU is at most its parent's. It shrinks with the parent's MTU, and does not grow again.
pub fn no_larger_than_its_parent_and_it_shrinks_with_it(node: &Node<'_, impl Kernel>) {
    node.make(add_child("nic0", BRIDGE, "rdma0"));
    assert_eq!(node.refused(mtu(POD, "rdma0", 1501)), Errno::EINVAL);
    node.make(mtu(HOST, "nic0", 1400));
    assert_eq!(node.pod("rdma0").mtu, 1400);
    let refused = node.refused(add_child("nic0", BRIDGE, "rdma1"));
    assert_eq!(refused, Errno::EINVAL);
    node.make(mtu(HOST, "nic0", 9000));
    assert_eq!(node.pod("rdma0").mtu, 1400);
}

/// A child can be set up while its parent is down, but has a carrier only while the parent is up
/// (`netif_stacked_transfer_operstate()`).
pub fn it_has_a_carrier_while_its_parent_is_up(node: &Node<'_, impl Kernel>) {
    node.make(add_child("nic0", BRIDGE, "rdma0"));
    node.make(up_at(POD, "rdma0", true));
    for parent in [false, true, false] {
        node.make(up("nic0", parent));
        let child = node.pod("rdma0");
        assert_eq!((child.up, child.carrier), (true, parent));
    }
}

/// Removing a missing netdev is no error. The kernel refuses to remove a netdev without `dellink`, such as `lo`.
pub fn it_ends_by_hand(node: &Node<'_, impl Kernel>) {
    node.make(add_child("nic0", BRIDGE, "rdma0"));
    node.make(remove_link(POD, "rdma0"));
    assert!(node.pod_has("rdma0").is_none());
    node.make(remove_link(POD, "rdma0"));
    assert_eq!(node.refused(remove_link(POD, "lo")), Errno::EOPNOTSUPP);
}

/// Removing a group removes only the pod's netdevs of this group. A group without netdevs is no error. The kernel
/// refuses group 0, the default group of all netdevs.
pub fn a_group_ends_by_one_deletion(node: &Node<'_, impl Kernel>) {
    let group = |link: &str, number| setting(POD, link, LinkSetting::Group, number);
    for (parent, child, number) in [
        ("nic0", "rdma0", 7),
        ("nic1", "rdma1", 7),
        ("nic0", "other", 8),
        ("nic1", "none", 0),
    ] {
        node.make(add_child(parent, BRIDGE, child));
        node.make(group(child, number));
    }
    for _ in 0..2 {
        node.make(Op::RemoveGroup { group: 7 });
        assert!(node.pod_has("rdma0").is_none() && node.pod_has("rdma1").is_none());
        node.pod("other");
        node.pod("none");
    }
    let refused = node.refused(Op::RemoveGroup { group: 0 });
    assert_eq!(refused, Errno::EPERM);
    // if one netdev of the group cannot be removed, the kernel removes none
    node.make(group("lo", 8));
    let refused = node.refused(Op::RemoveGroup { group: 8 });
    assert_eq!(refused, Errno::EOPNOTSUPP);
    node.pod("other");
}

/// The kernel reports the parent's new index and namespace as those of the child's lower netdev.
pub fn a_child_stays_linked_when_its_parent_moves(node: &Node<'_, impl Kernel>) {
    node.make(add_child("nic0", BRIDGE, "rdma0"));
    node.make(into_pod("nic0", "nic0"));
    assert_eq!(node.pod("rdma0").lower, Some(node.pod("nic0").index));
    let origin = node.pod("rdma0").origin.expect("what it was made on");
    assert_eq!(origin.netns, -1, "both are in one namespace");
    node.make(to_host("nic0", "nic0"));
    assert_eq!(node.pod("rdma0").lower, Some(node.host("nic0").index));
}

/// The child keeps its parent in the parent's new namespace, because macvlan ignores the `NETDEV_UNREGISTER` of a move
/// (`macvlan_device_event()`, `drivers/net/macvlan.c`).
pub fn it_stays_when_its_parent_leaves_its_namespace(node: &Node<'_, impl Kernel>) {
    node.make(add_child("nic0", BRIDGE, "rdma0"));
    node.make(into_pod("nic0", "nic0"));
    node.make(up_at(POD, "nic0", true));
    node.make(up_at(POD, "rdma0", true));
    let before = node.pod("rdma0");
    assert!(before.carrier);
    node.make(to_host("nic0", "nic0"));
    let child = node.pod("rdma0");
    assert_eq!((child.index, child.mac), (before.index, before.mac));
    assert_eq!((child.up, child.carrier), (true, false));
    node.make(up("nic0", true));
    assert!(node.pod("rdma0").carrier);
}
