// SPDX-License-Identifier: Apache-2.0
//! Tests of children of a host's netdev that are made in the pod. They use only macvlan, because some kernels on which
//! they run lack ipvlan. Tests in the lab use ipvlan.

use crate::world::{World, interface, with_node};
use netlink_packet_core::Parseable as _;
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{InfoData, InfoMacVlan, LinkAttribute, LinkInfo, LinkMessage},
};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::libc;
use rdma_netns::{Child, LinkChange, MacvlanMode, NetnsSide, Op, netlink::Socket, netns::Netns};

const BRIDGE: Child = Child::Macvlan {
    mode: MacvlanMode::Bridge,
};

fn add(child: Child, name: &str, mtu: u32) -> Op {
    Op::AddChild {
        at: NetnsSide::Pod,
        parent: interface("nic0"),
        child,
        name: interface(name),
        mtu,
    }
}

fn remove(at: NetnsSide, link: &str) -> Op {
    let link = interface(link);
    Op::Link {
        at,
        link,
        change: LinkChange::Remove,
    }
}

/// Returns `IFLA_MACVLAN_BC_CUTOFF` of a pod's netdev.
fn cutoff(world: &World, name: &str) -> Option<i32> {
    let index = world.pod_link(name).index;
    let ask = || {
        let mut message = LinkMessage::default();
        message.header.index = index;
        let mut socket = Socket::open(NETLINK_ROUTE).expect("a socket");
        let answers = socket.request(&RouteNetlinkMessage::GetLink(message), 0);
        let answers = answers.expect("the netdev");
        let body = answers.bodies().next().expect("the netdev");
        let link = LinkMessage::parse(body).expect("a netdev");
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

/// ADD sets the broadcast cutoff of macvlan children to -1: the kernel passes broadcasts to them at once. By default a
/// kernel thread passes some broadcasts later, and a child may receive the probes of other nodes too late.
#[test]
fn broadcasts_are_handed_to_children_as_they_come() {
    with_node(|world| {
        world.ip("link add theirs0 link nic0 type macvlan mode bridge");
        let pod = world.pod_path();
        world.ip(&format!("link set theirs0 netns {}", pod.display()));
        // the kernel does not report the default cutoff, 1
        assert_eq!(cutoff(world, "theirs0"), None);
        world.execute(add(BRIDGE, "rdma0", 1500));
        for name in ["rdma0", "theirs0"] {
            assert_eq!(cutoff(world, name), Some(-1), "{name}");
        }
    });
}

#[test]
fn gone_with_its_parent() {
    with_node(|world| {
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
    });
}
