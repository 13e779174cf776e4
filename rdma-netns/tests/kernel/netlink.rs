// SPDX-License-Identifier: Apache-2.0
//! Tests of exchanges with the kernel while another sender sends to the same socket.

use crate::world::with_node;
use netlink_packet_route::{RouteNetlinkMessage, link::LinkMessage};
use netlink_sys::{SocketAddr, protocols::NETLINK_ROUTE};
use nix::sys::socket::{NetlinkAddr, getsockname};
use rdma_netns::netlink::Socket;
use std::os::fd::{AsFd, AsRawFd};

/// A forged message of type `NLMSG_MIN_TYPE` with four bytes of content. It claims to answer the socket's second
/// request.
const FORGED: [u8; 20] = [20, 0, 0, 0, 16, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];

/// Any process with CAP_NET_ADMIN in the namespace can send messages to the socket of another process.
#[test]
fn messages_of_other_processes_are_no_answers() {
    with_node(|world| {
        let index = world.host_link("nic0").index;
        let mut socket = Socket::open(NETLINK_ROUTE).expect("a socket");
        let question = || {
            let mut message = LinkMessage::default();
            message.header.index = index;
            RouteNetlinkMessage::GetLink(message)
        };
        let ask = |socket: &mut Socket| {
            let answers = socket.request(&question(), 0).expect("the netdev");
            let bodies: Vec<Vec<u8>> = answers.bodies().map(<[u8]>::to_vec).collect();
            bodies
        };
        // the kernel assigns the socket's port id with the first request
        let [before] = &ask(&mut socket)[..] else {
            panic!("one netdev");
        };
        let address: NetlinkAddr = getsockname(socket.as_fd().as_raw_fd()).expect("its address");
        let other = netlink_sys::Socket::new(NETLINK_ROUTE).expect("a socket");
        for _ in 0..3 {
            let sent = other.send_to(&FORGED, &SocketAddr::new(address.pid(), 0), 0);
            assert_eq!(sent.expect("root may"), FORGED.len());
        }
        assert_eq!(ask(&mut socket), std::slice::from_ref(before));
    });
}
