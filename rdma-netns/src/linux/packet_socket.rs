// SPDX-License-Identifier: Apache-2.0
//! Packet sockets. This program sends ARP and neighbour solicitations through them, and neighbour advertisements
//! through a raw IPv6 socket.

use nix::{
    libc,
    sys::socket::{
        AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrLike, sendto, socket,
    },
};
use std::{
    io,
    net::Ipv4Addr,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};

pub(super) type Mac = [u8; 6];

pub(super) const EVERYBODY: Mac = [0xff; 6];

/// `ETH_P_ARP` (`include/uapi/linux/if_ether.h`)
pub(super) const ARP: u16 = 0x0806;

/// Fields at the beginning of an ARP packet: Ethernet, IPv4, and the lengths of their addresses (RFC 826).
pub(super) const ETHERNET_AND_IPV4: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];

/// Returns an ARP request for `target`. The target's hardware address is zero (RFC 826).
pub(super) fn arp_request(mac: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut packet = ETHERNET_AND_IPV4.to_vec();
    packet.extend([0, 1]);
    packet.extend(mac);
    packet.extend(sender.octets());
    packet.extend([0; 6]);
    packet.extend(target.octets());
    packet
}

/// Opens a packet socket without a protocol in the calling thread's namespace. The socket receives no packets until
/// [`bind`].
pub(super) fn open() -> io::Result<OwnedFd> {
    Ok(socket(
        AddressFamily::Packet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?)
}

/// Sends `packet` of `protocol` to `to` through the netdev `index`, in the namespace of `socket`. The kernel writes the
/// Ethernet header as the netdev requires (`packet_snd()`, `net/packet/af_packet.c`).
pub(super) fn send(
    socket: BorrowedFd<'_>,
    packet: &[u8],
    (protocol, to): (u16, Mac),
    index: u32,
    flags: MsgFlags,
) -> io::Result<()> {
    let to = link_address(protocol, index, to)?;
    sendto(socket.as_raw_fd(), packet, &to, flags)?;
    Ok(())
}

/// Makes `socket` receive packets of `protocol` from all netdevs of the socket's namespace.
pub(super) fn bind(socket: BorrowedFd<'_>, protocol: u16) -> io::Result<()> {
    let address = link_address(protocol, 0, [0; 6])?;
    Ok(nix::sys::socket::bind(socket.as_raw_fd(), &address)?)
}

fn link_address(protocol: u16, index: u32, mac: Mac) -> io::Result<LinkAddr> {
    let mut bytes = [0; 8];
    bytes[..mac.len()].copy_from_slice(&mac);
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: mac.len() as u8,
        sll_addr: bytes,
    };
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointer is to memory of the stated size that lives until the call returns.
    let address = unsafe { LinkAddr::from_raw((&raw const address).cast(), Some(length)) };
    address.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
