// SPDX-License-Identifier: Apache-2.0
//! Children of a host netdev, made in the pod. Macvlan only: not every kernel that these tests
//! run on has ipvlan, which is tried in the lab.

use crate::world::{World, interface, with_node};
use netlink_packet_core::Parseable as _;
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{InfoData, InfoMacVlan, LinkAttribute, LinkInfo, LinkMessage},
};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::libc;
use rdma_netns::{Child, MacvlanMode, NetnsSide, Op, netlink::Socket, netns::Netns};

const BRIDGE: Child = Child::Macvlan(MacvlanMode::Bridge);

fn add(child: Child, name: &str, mtu: u32) -> Op {
    Op::AddChild {
        parent: interface("nic0"),
        child,
        name: interface(name),
        mtu,
    }
}

fn remove(at: NetnsSide, link: &str) -> Op {
    let link = interface(link);
    Op::RemoveLink { at, link }
}

/// How many netdevs the host has.
fn count(world: &World) -> usize {
    world.observe().host.links.len()
}

#[test]
fn a_child_is_made_in_the_pod() {
    with_node(|world| {
        let before = world.observe().host;
        for (mode, name) in [
            (MacvlanMode::Bridge, "rdma0"),
            (MacvlanMode::Private, "rdma1"),
            (MacvlanMode::Vepa, "rdma2"),
        ] {
            world.execute(add(Child::Macvlan(mode), name, 1400));
            let child = world.pod_link(name);
            assert_eq!(child.kind.as_deref(), Some("macvlan"));
            assert_eq!(child.child, Some(Child::Macvlan(mode)));
            assert_eq!(child.mtu, 1400);
            assert_eq!(child.lower, before.link("nic0").map(|nic| nic.index));
            assert_ne!(child.mac, world.host_link("nic0").mac);
            assert!(!child.up);
        }
        assert_eq!(count(world), before.links.len());
        // the end of a pair lies on nothing
        assert_eq!(world.host_link("nic0").lower, None);
        assert_eq!(world.host_link("nic0").child, None);
    });
}

/// `IFLA_MACVLAN_BC_CUTOFF` of a pod's netdev.
fn cutoff(world: &World, name: &str) -> Option<i32> {
    let index = world.pod_link(name).index;
    let ask = || {
        let mut message = LinkMessage::default();
        message.header.index = index;
        let mut socket = Socket::open(NETLINK_ROUTE).expect("a socket");
        let answers = socket.request(&RouteNetlinkMessage::GetLink(message), 0);
        let body = answers.expect("the netdev").remove(0).body;
        let link = LinkMessage::parse(&body).expect("a netdev");
        let infos = link.attributes.into_iter().filter_map(|it| match it {
            LinkAttribute::LinkInfo(infos) => Some(infos),
            _ => None,
        });
        let data = infos.flatten().find_map(|it| match it {
            LinkInfo::Data(InfoData::MacVlan(data)) => Some(data),
            _ => None,
        });
        data?.into_iter().find_map(|it| match it {
            InfoMacVlan::BcCutoff(cutoff) => Some(cutoff),
            _ => None,
        })
    };
    let pod = Netns::open(&world.pod_path()).expect("the pod");
    pod.run(ask).expect("to enter it")
}

/// Where a kernel thread hands them on, probes of other nodes come late.
#[test]
fn broadcasts_are_handed_to_children_as_they_come() {
    with_node(|world| {
        world.ip("link add theirs0 link nic0 type macvlan mode bridge");
        let pod = world.pod_path();
        world.ip(&format!("link set theirs0 netns {}", pod.display()));
        // 1, which is not told
        assert_eq!(cutoff(world, "theirs0"), None);
        world.execute(add(BRIDGE, "rdma0", 1500));
        for name in ["rdma0", "theirs0"] {
            assert_eq!(cutoff(world, name), Some(-1), "{name}");
        }
    });
}

#[test]
fn a_passthru_child_is_the_only_one() {
    with_node(|world| {
        let passthru = Child::Macvlan(MacvlanMode::Passthru);
        world.execute(add(passthru, "rdma0", 1500));
        let child = world.pod_link("rdma0");
        assert_eq!(child.child, Some(passthru));
        assert_eq!(child.mac, world.host_link("nic0").mac);
        let error = world.refused(add(BRIDGE, "rdma1", 1500));
        assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    });
}

#[test]
fn a_name_that_is_taken_in_the_pod() {
    with_node(|world| {
        world.execute(add(BRIDGE, "rdma0", 1500));
        let error = world.refused(add(BRIDGE, "rdma0", 1500));
        assert_eq!(error.errno(), Some(libc::EEXIST), "{error}");
        let error = world.refused(add(BRIDGE, "lo", 1500));
        assert_eq!(error.errno(), Some(libc::EEXIST), "{error}");
    });
}

#[test]
fn a_name_of_the_host_is_free_for_the_pod() {
    with_node(|world| {
        let before = world.host_link("wire0");
        world.execute(add(BRIDGE, "wire0", 1500));
        assert_eq!(world.pod_link("wire0").child, Some(BRIDGE));
        assert_eq!(world.host_link("wire0"), before);
        world.execute(add(BRIDGE, "nic0", 1500));
        assert_eq!(world.pod_link("nic0").child, Some(BRIDGE));
    });
}

#[test]
fn no_more_than_its_parent_can_send() {
    with_node(|world| {
        let error = world.refused(add(BRIDGE, "rdma0", 1501));
        assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
        world.execute(add(BRIDGE, "rdma0", 1500));
        // a parent that shrinks takes its children along
        world.ip("link set nic0 mtu 1300");
        assert_eq!(world.pod_link("rdma0").mtu, 1300);
    });
}

#[test]
fn up_while_its_parent_is_down() {
    with_node(|world| {
        world.ip("link set nic0 down");
        world.execute(add(BRIDGE, "rdma0", 1500));
        let link = interface("rdma0");
        let (at, up) = (NetnsSide::Pod, true);
        world.execute(Op::SetUp { at, link, up });
        let child = world.pod_link("rdma0");
        assert!(child.up && !child.carrier);
        world.ip("link set nic0 up");
        assert!(world.pod_link("rdma0").carrier);
    });
}

#[test]
fn gone_by_hand_or_with_its_parent() {
    with_node(|world| {
        world.execute(add(BRIDGE, "rdma0", 1500));
        world.execute(remove(NetnsSide::Pod, "rdma0"));
        assert!(
            world
                .observe()
                .pod
                .expect("the pod")
                .link("rdma0")
                .is_none()
        );
        world.execute(remove(NetnsSide::Pod, "rdma0")); // is gone already
        world.execute(add(BRIDGE, "rdma0", 1500));
        world.execute(remove(NetnsSide::Host, "nic0"));
        assert!(
            world
                .observe()
                .pod
                .expect("the pod")
                .link("rdma0")
                .is_none()
        );
        let error = world.refused(add(BRIDGE, "rdma0", 1500));
        assert_eq!(error.errno(), Some(libc::ENODEV), "{error}");
        let error = world.refused(remove(NetnsSide::Pod, "lo"));
        assert_eq!(error.errno(), Some(libc::EOPNOTSUPP), "{error}");
    });
}

#[test]
fn a_parent_that_moves_keeps_its_child() {
    with_node(|world| {
        world.execute(add(BRIDGE, "rdma0", 1500));
        let index = world.host_link("nic0").index;
        world.execute(crate::world::to_pod("nic0", "nic0"));
        assert_eq!(
            world.pod_link("rdma0").lower,
            Some(world.pod_link("nic0").index)
        );
        assert_eq!(world.pod_link("nic0").index, index);
    });
}
