// SPDX-License-Identifier: Apache-2.0
//! Tests of observations of netdevs.

use crate::world::{interface, with_node};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkExtentMask, LinkMessage},
};
use netlink_sys::protocols::NETLINK_ROUTE;
use rdma_netns::{
    Kernel, LinkChange, LinkType, NetnsSide, Observed, Op, RdmaMode, netlink::Socket,
};

#[test]
fn links_as_they_are() {
    with_node(|world| {
        world.ip("link add br0 type bridge");
        world.ip("link set wire0 master br0");
        world.ip("link add link nic0 name child0 type macvlan mode bridge");
        let host = world.observe().host;
        let link = |name: &str| host.link(name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(link("lo").link_type, LinkType::Other);
        assert_eq!(
            (link("nic0").link_type, link("nic0").mtu),
            (LinkType::Ether, 1500)
        );
        // ETH_MAX_MTU
        assert_eq!(link("nic0").max_mtu, Some(65_535));
        assert_eq!(link("wire0").master, Some(link("br0").index));
        assert!(link("nic0").up && link("nic0").carrier);
        assert!(!link("child0").up);
        let kinds = ["lo", "nic0", "br0", "child0"].map(|name| link(name).kind.as_deref());
        assert_eq!(kinds, [None, Some("veth"), Some("bridge"), Some("macvlan")]);
        assert!(host.links.iter().all(|link| link.parent.is_none()));
    });
}

#[test]
fn looking_changes_nothing_and_is_kept_as_text() {
    with_node(|world| {
        // remove the addresses that the kernel would otherwise change during the test
        for nic in ["nic0", "wire0"] {
            world.ip(&format!("link set {nic} addrgenmode none"));
            world.ip(&format!("-6 address flush dev {nic}"));
        }
        let first = world.observe();
        assert_eq!(world.observe(), first);
        assert_eq!(first.boot_id.len(), 36);
        assert_eq!(first.boot_id, world.kernel.boot_id().expect("a boot id"));
        let text = serde_json::to_string(&first).expect("text");
        assert_eq!(
            serde_json::from_str::<Observed>(&text).expect("the state"),
            first
        );
        // a kernel with an RDMA subsystem has a mode; RDMA devices exist only on such a kernel
        let modes = [None, Some(RdmaMode::Shared), Some(RdmaMode::Exclusive)];
        assert!(modes.contains(&first.rdma_mode));
        assert!(first.rdma_mode.is_some() || first.host.rdma.is_empty());
    });
}

/// Two messages are longer than the socket's first buffer: a part of a dump, and the answer to one query.
#[test]
fn a_netdev_with_many_attributes_is_read_whole() {
    with_node(|world| {
        let names: Vec<String> = (0..450).map(|it| format!("{it:0>120}")).collect();
        for some in names.chunks(6) {
            let some: Vec<String> = some.iter().map(|it| format!("altname {it}")).collect();
            world.ip(&format!("link property add dev nic0 {}", some.join(" ")));
        }
        assert_eq!(world.host_link("nic0").alt_names, names);
        world.execute(Op::Link {
            at: NetnsSide::Host,
            link: interface("nic0"),
            change: LinkChange::Mtu(4000),
        });
        let after = world.host_link("nic0");
        assert_eq!((after.mtu, after.alt_names), (4000, names));
        // a new socket has received no long datagram yet
        let mut socket = Socket::open(NETLINK_ROUTE).expect("a socket");
        let mut question = LinkMessage::default();
        let mask = LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]);
        question.attributes.push(mask);
        let question = RouteNetlinkMessage::GetLink(question);
        let answers = socket.dump_once(&question).expect("all netdevs");
        assert_eq!(answers.bodies().count(), world.observe().host.links.len());
    });
}

#[test]
fn many_links_are_all_seen() {
    with_node(|world| {
        for number in 0..150 {
            world.ip(&format!(
                "link add many{number} type veth peer name peer{number}"
            ));
        }
        world.ip("route add 10.0.0.0/8 dev nic0");
        let host = world.observe().host;
        assert_eq!(host.links.len(), 303);
        assert_eq!(
            host.link("nic0")
                .expect("nic0")
                .routes
                .iter()
                .filter(|r| r.prefix == 8)
                .count(),
            1
        );
    });
}
