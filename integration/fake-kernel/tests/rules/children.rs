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
fn made_in_the_pod_with_a_mac_of_its_own_or_its_parents() {
    let (mut world, pod) = exclusive();
    make(&mut world, add_child("eth0", BRIDGE, "rdma0"));
    make(&mut world, add_child("eth0", BRIDGE, "rdma1"));
    make(&mut world, add_child("eth1", IPVLAN, "rdma2"));
    let (eth0, eth1) = (host(&world, "eth0"), host(&world, "eth1"));
    let (first, second) = (child(&world, pod, "rdma0"), child(&world, pod, "rdma1"));
    let third = child(&world, pod, "rdma2");
    assert_eq!((first.lower, first.child), (Some(eth0.index), Some(BRIDGE)));
    assert!(first.mac != eth0.mac && first.mac != second.mac);
    assert_eq!(
        (third.kind.as_deref(), &third.mac),
        (Some("ipvlan"), &eth1.mac)
    );
    assert!(!first.up);
    assert_eq!(world.links(HOST).len(), 3);
    let mac = Op::SetMac {
        at: NetnsSide::Pod,
        link: name("rdma2"),
        mac: first.mac.clone(),
    };
    assert_eq!(errno(&mut world, mac), Errno::EOPNOTSUPP);
}

#[test]
fn refused_where_the_name_is_taken_or_the_parent_is_not_on_the_host() {
    let (mut world, _) = exclusive();
    assert_eq!(
        errno(&mut world, add_child("eth0", BRIDGE, "lo")),
        Errno::EEXIST
    );
    make(&mut world, add_child("eth0", BRIDGE, "eth1"));
    make(&mut world, into_pod("eth1", "rdma1"));
    assert_eq!(
        errno(&mut world, add_child("eth1", BRIDGE, "rdma0")),
        Errno::ENODEV
    );
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
fn a_passthru_child_is_the_only_one() {
    let (mut world, _) = exclusive();
    let passthru = Child::Macvlan(MacvlanMode::Passthru);
    make(&mut world, add_child("eth0", passthru, "rdma0"));
    assert_eq!(
        errno(&mut world, add_child("eth0", BRIDGE, "rdma1")),
        Errno::EINVAL
    );
    make(&mut world, add_child("eth1", BRIDGE, "rdma1"));
    assert_eq!(
        errno(&mut world, add_child("eth1", passthru, "rdma2")),
        Errno::EINVAL
    );
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
fn a_macvlan_is_no_larger_than_its_parent_and_shrinks_with_it() {
    let (mut world, pod) = exclusive();
    make(&mut world, add_child("eth0", BRIDGE, "rdma0"));
    assert_eq!(
        errno(&mut world, set_mtu(NetnsSide::Pod, "rdma0", 1501)),
        Errno::EINVAL
    );
    make(&mut world, set_mtu(AT, "eth0", 1400));
    assert_eq!(child(&world, pod, "rdma0").mtu, 1400);
    assert_eq!(
        errno(&mut world, add_child("eth0", BRIDGE, "rdma1")),
        Errno::EINVAL
    );
    make(&mut world, set_mtu(AT, "eth0", 9000));
    assert_eq!(child(&world, pod, "rdma0").mtu, 1400);
}

#[test]
fn an_ipvlan_follows_its_parents_mtu() {
    let (mut world, pod) = exclusive();
    make(&mut world, add_child("eth0", IPVLAN, "rdma0"));
    make(&mut world, set_mtu(AT, "eth0", 9000));
    assert_eq!(child(&world, pod, "rdma0").mtu, 9000);
}

#[test]
fn it_has_a_carrier_while_its_parent_is_up() {
    let (mut world, pod) = exclusive();
    make(&mut world, add_child("eth0", BRIDGE, "rdma0"));
    make(&mut world, in_pod(up("rdma0", true)));
    let state = |world: &World| {
        let child = child(world, pod, "rdma0");
        (child.up, child.carrier)
    };
    assert_eq!(state(&world), (true, false));
    make(&mut world, up("eth0", true));
    assert_eq!(state(&world), (true, true));
    make(&mut world, up("eth0", false));
    assert_eq!(state(&world), (true, false));
}

#[test]
fn it_ends_by_hand_with_its_namespace_or_with_its_parent() {
    let (mut world, pod) = exclusive();
    for parent in ["eth0", "eth1"] {
        make(&mut world, add_child(parent, BRIDGE, parent));
    }
    make(&mut world, remove_link(NetnsSide::Pod, "eth1"));
    make(&mut world, remove_link(NetnsSide::Pod, "eth1"));
    assert!(world.link(pod, "eth1").is_none() && world.link(HOST, "eth1").is_some());
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
    make(&mut world, host_link("eth1", "eth1"));
    assert_eq!(
        child(&world, pod, "rdma0").lower,
        Some(host(&world, "eth1").index)
    );
}
