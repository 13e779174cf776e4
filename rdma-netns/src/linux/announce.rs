// SPDX-License-Identifier: Apache-2.0
//! Announces to neighbours which hardware address has an IP address. ARP announcements use a packet socket, and
//! unsolicited neighbour advertisements use a raw socket. A packet socket would also work for IPv6, but closing it
//! takes the kernel some 15 ms (`Space::packet`).

use super::packet_socket::{ARP, EVERYBODY, Mac, arp_request, send};
use nix::{
    libc,
    sys::socket::{
        AddressFamily, ControlMessage, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6,
        sendmsg, socket,
    },
};
use std::{
    io::{self, IoSlice},
    net::{Ipv4Addr, Ipv6Addr, SocketAddrV6},
    os::fd::{AsRawFd, BorrowedFd},
};

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Returns an ARP announcement: a broadcast request with `address` as sender and target (RFC 5227, sections 2.3 and 3).
fn announcement(address: Ipv4Addr, mac: Mac) -> Vec<u8> {
    arp_request(mac, address, address)
}

/// Returns an unsolicited neighbour advertisement (RFC 4861, sections 4.4 and 7.2.6). The override flag makes
/// neighbours replace the hardware address in their cache (section 7.2.5). The kernel fills in the checksum
/// (`rawv6_push_pending_frames()`, `net/ipv6/raw.c`).
fn advertisement(address: Ipv6Addr, mac: Mac) -> Vec<u8> {
    const OVERRIDE: u8 = 0x20;
    let mut message = vec![136, 0, 0, 0, OVERRIDE, 0, 0, 0];
    message.extend(address.octets());
    // the target's link-layer address option, with a length of one unit of 8 bytes (section 4.6.1)
    message.extend([2, 1]);
    message.extend(mac);
    message
}

/// Announces to all nodes that `mac` has `address`, through the netdev `index` of the calling thread's namespace. The
/// packet's source is `address`. Its hop limit is 255, because receivers drop packets with any other hop limit (RFC
/// 4861, section 7.1.2).
pub(super) fn advertise(address: Ipv6Addr, mac: Mac, index: u32) -> io::Result<()> {
    let socket = socket(
        AddressFamily::Inet6,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::IcmpV6,
    )?;
    let from = libc::in6_pktinfo {
        ipi6_addr: libc::in6_addr {
            s6_addr: address.octets(),
        },
        ipi6_ifindex: index,
    };
    let to = SockaddrIn6::from(SocketAddrV6::new(ALL_NODES, 0, 0, index));
    let message = advertisement(address, mac);
    sendmsg(
        socket.as_raw_fd(),
        &[IoSlice::new(&message)],
        &[
            ControlMessage::Ipv6PacketInfo(&from),
            ControlMessage::Ipv6HopLimit(&255),
        ],
        MsgFlags::empty(),
        Some(&to),
    )?;
    Ok(())
}

/// Announces through the netdev `index`, in the namespace of `socket`, that `mac` has `address`.
pub(super) fn announce(
    socket: BorrowedFd<'_>,
    address: Ipv4Addr,
    mac: Mac,
    index: u32,
) -> io::Result<()> {
    let packet = announcement(address, mac);
    send(socket, &packet, (ARP, EVERYBODY), index, MsgFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [0x02, 0x00, 0x5e, 0x10, 0x20, 0x30];

    #[test]
    fn an_arp_announcement() {
        #[rustfmt::skip]
        let packet = [
            0x00, 0x01, 0x08, 0x00, 0x06, 0x04, 0x00, 0x01,
            0x02, 0x00, 0x5e, 0x10, 0x20, 0x30, 10, 0, 0, 5,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 10, 0, 0, 5,
        ];
        assert_eq!(announcement(Ipv4Addr::new(10, 0, 0, 5), MAC), packet);
    }

    #[test]
    fn an_unsolicited_neighbour_advertisement() {
        let address = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 5);
        #[rustfmt::skip]
        let message = [
            0x88, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00,
            0xfd, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x05,
            0x02, 0x01, 0x02, 0x00, 0x5e, 0x10, 0x20, 0x30,
        ];
        assert_eq!(advertisement(address, MAC), message);
    }
}
