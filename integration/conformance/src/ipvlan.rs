// SPDX-License-Identifier: Apache-2.0
//! Ipvlan children of a host netdev, made in the pod, on a kernel with ipvlan.

use crate::{Node, ops::*};
use nix::errno::Errno;
use rdma_netns::{Child, IpvlanMode, Kernel, LinkChange, Op};

const IPVLAN: Child = Child::Ipvlan {
    mode: IpvlanMode::L2,
};

/// An ipvlan child has its parent's MAC address, and the kernel refuses to change the child's address
/// (`ipvlan_link_new()`, `drivers/net/ipvlan/ipvlan_main.c`; there is no `ndo_set_mac_address`).
pub fn it_has_its_parents_mac_for_good(node: &Node<'_, impl Kernel>) {
    let parent = node.host("nic0");
    node.make(add_child("nic0", IPVLAN, "rdma0"));
    let made = node.pod("rdma0");
    assert_eq!(
        (made.kind.as_deref(), &made.mac),
        (Some("ipvlan"), &parent.mac)
    );
    assert_eq!((made.child, made.lower), (Some(IPVLAN), Some(parent.index)));
    let mac = Op::Link {
        at: POD,
        link: name("rdma0"),
        change: LinkChange::Mac(node.host("nic1").mac),
    };
    assert_eq!(node.refused(mac), Errno::EOPNOTSUPP);
}

/// All children of a netdev have the mode of the child that was made last (`ipvlan_set_port_mode()`).
pub fn all_have_one_mode(node: &Node<'_, impl Kernel>) {
    let modes = [IpvlanMode::L3, IpvlanMode::L3s, IpvlanMode::L2];
    for (mode, called) in modes.into_iter().zip(["rdma0", "rdma1", "rdma2"]) {
        let child = Child::Ipvlan { mode };
        node.make(add_child("nic0", child, called));
        for made in ["rdma0", called] {
            assert_eq!(node.pod(made).child, Some(child), "{made}");
        }
    }
}

/// The child's MTU follows its parent's, down and up (`ipvlan_adjust_mtu()`).
pub fn it_follows_its_parents_mtu(node: &Node<'_, impl Kernel>) {
    node.make(add_child("nic0", IPVLAN, "rdma0"));
    for bytes in [1450, 1500] {
        node.make(mtu(HOST, "nic0", bytes));
        assert_eq!(node.pod("rdma0").mtu, bytes);
    }
}

/// Macvlan and ipvlan each need the parent's `rx_handler`, and a netdev has only one.
pub fn macvlan_and_ipvlan_exclude_each_other(node: &Node<'_, impl Kernel>) {
    for (parent, first, second) in [("nic0", BRIDGE, IPVLAN), ("nic1", IPVLAN, BRIDGE)] {
        node.make(add_child(parent, first, "rdma0"));
        let refused = node.refused(add_child(parent, second, "rdma1"));
        assert_eq!(refused, Errno::EBUSY, "{parent}");
        node.make(remove_link(POD, "rdma0"));
        node.make(add_child(parent, second, "rdma0"));
        node.make(remove_link(POD, "rdma0"));
    }
}
