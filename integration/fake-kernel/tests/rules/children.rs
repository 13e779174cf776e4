// SPDX-License-Identifier: Apache-2.0
//! Macvlan and ipvlan children.

use super::*;

fn child<'a>(world: &'a World, pod: NetnsId, name: &str) -> &'a Link {
    world.link(pod, name).expect("a netdev of the pod")
}

fn set_mtu(at: NetnsSide, link: &str, mtu: u32) -> Op {
    let link = name(link);
    Op::SetMtu { at, link, mtu }
}

#[test]
fn an_ipvlan_has_its_parents_mac_for_good() {
    let (mut world, pod) = exclusive();
    make(&mut world, add_child("eth1", IPVLAN, "rdma2"));
    let (made, mac) = (child(&world, pod, "rdma2"), &host(&world, "eth1").mac);
    assert_eq!((made.kind.as_deref(), &made.mac), (Some("ipvlan"), mac));
    let mac = Op::SetMac {
        at: NetnsSide::Pod,
        link: name("rdma2"),
        mac: host(&world, "eth0").mac.clone(),
    };
    assert_eq!(errno(&mut world, mac), Errno::EOPNOTSUPP);
}

#[test]
fn macvlan_and_ipvlan_exclude_each_other() {
    let (mut world, _) = exclusive();
    make(&mut world, add_child("eth0", BRIDGE, "rdma0"));
    assert_eq!(
        errno(&mut world, add_child("eth0", IPVLAN, "rdma1")),
        Errno::EBUSY
    );
    make(&mut world, remove_link(NetnsSide::Pod, "rdma0"));
    make(&mut world, add_child("eth0", IPVLAN, "rdma0"));
    assert_eq!(
        errno(&mut world, add_child("eth0", BRIDGE, "rdma1")),
        Errno::EBUSY
    );
    make(&mut world, add_child("eth0", IPVLAN, "rdma1"));
}

#[test]
fn all_ipvlan_children_have_one_mode() {
    let (mut world, pod) = exclusive();
    make(&mut world, add_child("eth0", IPVLAN, "rdma0"));
    let routed = Child::Ipvlan(IpvlanMode::L3);
    make(&mut world, add_child("eth0", routed, "rdma1"));
    assert_eq!(child(&world, pod, "rdma0").child, Some(routed));
}

#[test]
fn an_ipvlan_follows_its_parents_mtu() {
    let (mut world, pod) = exclusive();
    make(&mut world, add_child("eth0", IPVLAN, "rdma0"));
    make(&mut world, set_mtu(AT, "eth0", 9000));
    assert_eq!(child(&world, pod, "rdma0").mtu, 9000);
}

#[test]
fn it_ends_with_its_namespace_or_with_its_parent() {
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
fn it_stays_linked_when_its_parent_moves() {
    let (mut world, pod) = exclusive();
    make(&mut world, add_child("eth1", BRIDGE, "rdma0"));
    make(&mut world, add_child("eth0", BRIDGE, "rdma1"));
    make(&mut world, into_pod("eth1", "eth1"));
    // its number is taken there
    let eth1 = child(&world, pod, "eth1").index;
    assert_ne!(eth1, 3);
    assert_eq!(child(&world, pod, "rdma0").lower, Some(eth1));
    make(&mut world, to_host("eth1", "eth1"));
    assert_eq!(
        child(&world, pod, "rdma0").lower,
        Some(host(&world, "eth1").index)
    );
}
