// SPDX-License-Identifier: Apache-2.0
//! Objects of a netdev that a move removes, and that `rdma-cni` does not restore: queueing disciplines, permanent
//! neighbours, and multicast and anycast routes.

use super::{ip_of, routes};
use crate::netlink::{Answers, Request, Socket, attribute, text, u16_of, u32_of};
use netlink_packet_route::{AddressFamily, route::RouteType};
use nix::libc::{NDA_DST, TCA_KIND};

/// `RTM_GETNEIGH`, `sizeof(struct ndmsg)`
const NEIGHBOURS: u16 = 30;
const NEIGHBOUR_HEADER: usize = 12;
/// `NUD_PERMANENT`
const PERMANENT: u16 = 0x80;

/// `RTM_GETQDISC`, `sizeof(struct tcmsg)`
const QDISCS: u16 = 38;
const QDISC_HEADER: usize = 20;

/// Index of a netdev, and the description of one of its objects.
type Found = (u32, String);

/// Describes the objects of `netdevs` that a move removes, each with the netdev's index. Omits objects that the kernel
/// made itself, and objects that cannot be read.
#[cold]
pub(super) fn read(socket: &mut Socket, netdevs: &[u32]) -> Vec<Found> {
    let mut found = vec![];
    let mut dumped = |answers: Option<Answers>, words: &dyn Fn(&[u8]) -> Option<Found>| {
        let bodies = answers.iter().flat_map(Answers::bodies);
        found.extend(bodies.filter_map(words));
    };
    // `struct ndmsg` and `struct tcmsg` have the netdev's index at the same offset
    let netdev = |body: &[u8]| {
        let index = body.get(4..8).and_then(u32_of);
        index.filter(|it| netdevs.contains(it))
    };
    let qdiscs = Request::new(QDISCS, &[0; QDISC_HEADER]);
    dumped(socket.dump(&qdiscs).ok(), &|body| {
        // a queueing discipline that the kernel made itself has the handle 0
        let number = body.get(8..12)?;
        let index = netdev(body).filter(|_| number != [0; 4])?;
        let kind = attribute(body.get(QDISC_HEADER..)?, TCA_KIND)?;
        Some((index, format!("qdisc {}", text(kind)?)))
    });
    let neighbours = Request::new(NEIGHBOURS, &[0; NEIGHBOUR_HEADER]);
    dumped(socket.dump(&neighbours).ok(), &|body| {
        let state = u16_of(body.get(8..10)?)?;
        let index = netdev(body).filter(|_| state & PERMANENT != 0)?;
        let address = attribute(body.get(NEIGHBOUR_HEADER..)?, NDA_DST)?;
        Some((index, format!("permanent neighbour {}", ip_of(address)?)))
    });
    for (kind, word) in [
        (RouteType::Multicast, "multicast"),
        (RouteType::Anycast, "anycast"),
    ] {
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            dumped(socket.dump(&routes::dump(family, kind)).ok(), &|body| {
                let (index, to) = routes::special(body, kind, netdevs)?;
                Some((index, format!("{word} route to {to}")))
            });
        }
    }
    found
}
