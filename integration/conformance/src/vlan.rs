// SPDX-License-Identifier: Apache-2.0
//! VLANs of a host netdev, and the VLANs' children in the pod, on a kernel with VLANs.

use crate::{Node, ops::*};
use nix::errno::Errno;
use rdma_netns::{HardwareAddress, Kernel, LinkChange, Op};

fn set_mac(mac: &HardwareAddress) -> Op {
    Op::Link {
        at: HOST,
        link: name("nic0"),
        change: LinkChange::Mac(mac.clone()),
    }
}

/// A new VLAN has its lower netdev's MAC address and MTU (`vlan_dev_init()`, `net/8021q/vlan_dev.c`). The VLAN takes
/// over a changed MAC address while it is up, or when it goes up (`vlan_dev_inherit_address()`).
pub fn it_has_its_lowers_mac_and_mtu(node: &Node<'_, impl Kernel>) {
    node.make(up("nic0", false));
    node.make(mtu(HOST, "nic0", 1400));
    (node.add_vlan)("nic0", 7);
    let (lower, vlan) = (node.host("nic0"), node.host("nic0.7"));
    assert_eq!((vlan.kind.as_deref(), vlan.up), (Some("vlan"), false));
    assert_eq!((vlan.lower, vlan.child), (Some(lower.index), None));
    assert!(vlan.is_vlan() && !lower.is_vlan());
    assert_eq!((vlan.mac, vlan.mtu), (lower.mac, 1400));
    let before = node.host("nic0").mac;
    let mac: HardwareAddress = "02:00:00:00:00:77".parse().expect("an address");
    node.make(set_mac(&mac));
    assert_eq!(node.host("nic0.7").mac, before);
    node.make(up("nic0", true));
    assert_eq!(node.host("nic0.7").mac, mac);
    node.make(set_mac(&before));
    assert_eq!(node.host("nic0.7").mac, before);
    node.make(mtu(HOST, "nic0", 1300));
    assert_eq!(node.host("nic0.7").mtu, 1300);
    node.make(mtu(HOST, "nic0", 1500));
    assert_eq!(node.host("nic0.7").mtu, 1300);
}

/// A VLAN cannot go up while its lower netdev is down (`vlan_dev_open()`). The VLANs of a netdev are set up and down
/// with it (`vlan_device_event()`, `net/8021q/vlan.c`). A VLAN can be set down alone.
pub fn it_is_up_and_down_with_its_lower(node: &Node<'_, impl Kernel>) {
    node.make(up("nic0", false));
    (node.add_vlan)("nic0", 7);
    assert_eq!(node.refused(up("nic0.7", true)), Errno::ENETDOWN);
    for lower in [true, false, true] {
        node.make(up("nic0", lower));
        let vlan = node.host("nic0.7");
        assert_eq!((vlan.up, vlan.carrier), (lower, lower));
    }
    node.make(up("nic0.7", false));
    assert!(node.host("nic0").up);
    assert!(!node.host("nic0.7").carrier);
}

/// A VLAN's child behaves like a child of any netdev. The VLAN and its lower netdev can both have children, because
/// each netdev has its own receive handler.
pub fn a_child_of_it_has_its_carrier_and_ends_with_it(node: &Node<'_, impl Kernel>) {
    (node.add_vlan)("nic0", 7);
    node.make(up("nic0.7", true));
    node.make(add_child("nic0.7", BRIDGE, "rdma0"));
    node.make(add_child("nic0", BRIDGE, "rdma1"));
    node.make(up_at(POD, "rdma0", true));
    let child = || node.pod("rdma0");
    assert_eq!(child().lower, Some(node.host("nic0.7").index));
    assert_ne!(child().mac, node.host("nic0.7").mac);
    for vlan in [false, true] {
        node.make(up("nic0.7", vlan));
        assert_eq!((child().up, child().carrier), (true, vlan));
    }
    for lower in [false, true] {
        node.make(up("nic0", lower));
        assert_eq!((child().up, child().carrier), (true, lower));
    }
    node.make(mtu(HOST, "nic0", 1400));
    assert_eq!(child().mtu, 1400);
    node.make(remove_link(HOST, "nic0.7"));
    assert!(node.pod_has("rdma0").is_none());
    node.pod("rdma1");
}

/// The VLAN still goes up and down with its lower netdev in the pod: VLANs ignore the `NETDEV_UNREGISTER` of a move,
/// and their events do not depend on the namespace (`vlan_device_event()`, `net/8021q/vlan.c`).
pub fn it_stays_when_its_lower_leaves_its_namespace(node: &Node<'_, impl Kernel>) {
    (node.add_vlan)("nic0", 7);
    node.make(up("nic0.7", true));
    let before = node.host("nic0.7");
    assert!(before.up);
    node.make(into_pod("nic0", "nic0"));
    let vlan = || node.host("nic0.7");
    assert_eq!((vlan().index, vlan().mac), (before.index, before.mac));
    assert_eq!((vlan().up, vlan().carrier), (false, false));
    for lower in [true, false] {
        node.make(up_at(POD, "nic0", lower));
        assert_eq!((vlan().up, vlan().carrier), (lower, lower));
    }
    node.make(to_host("nic0", "nic0"));
    assert_eq!(vlan().lower, Some(node.host("nic0").index));
}
