// SPDX-License-Identifier: Apache-2.0
//! IPoIB: modes, and children in partitions.

use super::*;
use rdma_netns::{IpoibMode, Pkey};

const POD: NetnsSide = NetnsSide::Pod;
const PKEY: Pkey = Pkey(0x8001);

/// Returns a world with an InfiniBand port, its netdev `ib0`, up, and a pod.
fn port() -> (World, NetnsId) {
    let mut world = World::new(Some(RdmaMode::Shared));
    world.plug(Nic::infiniband("0000:01:00.0", "mlx5_0"));
    world.set_partitions("mlx5_0", &[Pkey(0xffff), Pkey(0x0001)]);
    make(&mut world, up("ib0", true));
    let pod = world.create_namespace("/run/netns/pod");
    (world, pod)
}

fn child(at: NetnsSide, parent: &str, pkey: u16, to: &str) -> Op {
    Op::AddChild {
        at,
        parent: name(parent),
        child: Child::Ipoib {
            pkey: Pkey(pkey),
            mode: IpoibMode::Datagram,
        },
        name: name(to),
        mtu: 1500,
    }
}

fn mode(at: NetnsSide, link: &str, mode: IpoibMode) -> Op {
    let link = name(link);
    Op::Link {
        at,
        link,
        change: LinkChange::IpoibMode(mode),
    }
}

fn mtu(link: &str, mtu: u32) -> Op {
    let link = name(link);
    Op::Link {
        at: AT,
        link,
        change: LinkChange::Mtu(mtu),
    }
}

/// `__ipoib_vlan_add()`, `is_child_unique()`, `ipoib_child_init()`.
#[test]
fn a_parent_has_several_children_in_one_partition() {
    let (mut world, _) = port();
    for to in ["a", "b"] {
        make(&mut world, child(AT, "ib0", 0x0001, to));
    }
    let (parent, a, b) = (host(&world, "ib0"), host(&world, "a"), host(&world, "b"));
    assert_eq!((a.lower, a.parent.as_ref()), (Some(parent.index), None));
    let mode = IpoibMode::Datagram;
    // a child is a full member, although the request has the P_Key of a limited member
    assert_eq!(a.child, Some(Child::Ipoib { pkey: PKEY, mode }));
    assert_eq!((a.mtu, a.up), (2044, false));
    assert_eq!(a.mac.0[4..], parent.mac.0[4..]);
    assert!(a.mac != parent.mac && a.mac != b.mac);
    for (op, refusal) in [
        (child(AT, "a", 0x8001, "c"), Errno::EINVAL),
        (child(AT, "ib0", 0x8000, "c"), Errno::EINVAL),
        (child(AT, "ib0", 0x8001, "b"), Errno::EEXIST),
        // mlx5 refuses a child in another namespace
        (child(POD, "ib0", 0x8001, "c"), Errno::EINVAL),
    ] {
        assert_eq!(errno(&mut world, op.clone()), refusal, "{op}");
    }
    world.plug(Nic::physical("0000:02:00.0", "eth1", "mlx5_1"));
    let on_ethernet = child(AT, "eth1", 0x8001, "c");
    assert_eq!(errno(&mut world, on_ethernet), Errno::ENODEV);
}

/// `ipoib_set_mode()`, `ipoib_change_mtu()`.
#[test]
fn a_mode_has_an_mtu() {
    let (mut world, _) = port();
    assert_eq!(errno(&mut world, mtu("ib0", 2045)), Errno::EINVAL);
    make(&mut world, mode(AT, "ib0", IpoibMode::Connected));
    assert_eq!(host(&world, "ib0").mtu, 65520);
    make(&mut world, mtu("ib0", 9000));
    make(&mut world, mode(AT, "ib0", IpoibMode::Connected));
    assert_eq!(host(&world, "ib0").mtu, 9000);
    make(&mut world, mode(AT, "ib0", IpoibMode::Datagram));
    assert_eq!(host(&world, "ib0").mtu, 2044);
    world.accelerate_ipoib("mlx5_0");
    let connected = mode(AT, "ib0", IpoibMode::Connected);
    assert_eq!(errno(&mut world, connected), Errno::EINVAL);
}

/// A child in another namespace also follows its parent (`ipoib_open()`, `ipoib_stop()`).
#[test]
fn children_go_up_and_down_with_their_parent() {
    let (mut world, pod) = port();
    make(&mut world, child(AT, "ib0", 0x8001, "a"));
    make(&mut world, into_pod("a", "rdma0"));
    let is_up = |world: &World| world.link(pod, "rdma0").is_some_and(|it| it.up);
    for up in [false, true, false] {
        make(&mut world, super::up("ib0", up));
        assert_eq!(is_up(&world), up);
    }
}

/// `ipoib_ib_dev_open()`.
#[test]
fn without_its_partition_a_netdev_has_no_carrier() {
    let (mut world, _) = port();
    for (key, to, carrier) in [(0x8001, "a", true), (0x8002, "b", false)] {
        make(&mut world, child(AT, "ib0", key, to));
        make(&mut world, up(to, true));
        assert_eq!(host(&world, to).carrier, carrier, "{to}");
    }
}

/// `ipoib_link_ops.netns_refund`, `ipoib_del_child_link()`, `ipoib_remove_one()`.
#[test]
fn how_children_end() {
    let (mut world, _) = port();
    for to in ["a", "b", "c"] {
        make(&mut world, child(AT, "ib0", 0x8001, to));
    }
    make(&mut world, remove_link(AT, "a"));
    assert!(world.link(HOST, "a").is_none());
    make(&mut world, remove_link(AT, "ib0"));
    host(&world, "ib0");
    make(&mut world, into_pod("b", "rdma0"));
    let mut older = world.clone();
    older.returns_ipoib_children = false;
    for (world, returns) in [(&mut world, true), (&mut older, false)] {
        world.unmount("/run/netns/pod");
        assert_eq!(world.link(HOST, "rdma0").is_some(), returns);
        world.unplug("0000:01:00.0");
        assert!(world.link(HOST, "rdma0").is_none() && world.link(HOST, "c").is_none());
    }
}
