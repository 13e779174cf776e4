//! Telling a link which hardware address has an IP address now: the frames, and the packet
//! socket that sends them.

use nix::{
    libc,
    sys::socket::{AddressFamily, SockFlag, SockType, socket},
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};

/// `ETH_P_ARP` and `ETH_P_IPV6` (`include/uapi/linux/if_ether.h`)
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

/// `IPPROTO_ICMPV6`
const ICMPV6: u8 = 58;

type Mac = [u8; 6];

const EVERYBODY: Mac = [0xff; 6];

/// ff02::1 and what Ethernet makes of it (RFC 2464, section 7).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];

/// An Ethernet frame, less the source, which the kernel writes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    to: Mac,
    protocol: u16,
    payload: Vec<u8>,
}

/// Announces that `mac` has `address`.
pub(super) fn frame(address: IpAddr, mac: Mac) -> Frame {
    match address {
        IpAddr::V4(address) => Frame {
            to: EVERYBODY,
            protocol: ARP,
            payload: arp(address, mac),
        },
        IpAddr::V6(address) => Frame {
            to: ALL_NODES_MAC,
            protocol: IPV6,
            payload: advertisement(address, mac),
        },
    }
}

/// An ARP announcement: a broadcast request whose sender and target both have `address`, the
/// target's hardware address being zero (RFC 5227, sections 2.3 and 3).
fn arp(address: Ipv4Addr, mac: Mac) -> Vec<u8> {
    // Ethernet, IPv4, the lengths of their addresses, request (RFC 826)
    let mut packet = vec![0, 1, 0x08, 0x00, 6, 4, 0, 1];
    packet.extend(mac);
    packet.extend(address.octets());
    packet.extend([0; 6]);
    packet.extend(address.octets());
    packet
}

/// An unsolicited neighbour advertisement to all nodes (RFC 4861, sections 4.4 and 7.2.6), in
/// its IPv6 packet. With the override flag, as a neighbour keeps what it knows without it
/// (section 7.2.5); hop limit 255, or it is dropped (section 7.1.2).
fn advertisement(address: Ipv6Addr, mac: Mac) -> Vec<u8> {
    const OVERRIDE: u8 = 0x20;
    // neighbour advertisement, its checksum left out
    let mut message = vec![136, 0, 0, 0, OVERRIDE, 0, 0, 0];
    message.extend(address.octets());
    // the target's link-layer address, in one unit of 8 bytes (section 4.6.1)
    message.extend([2, 1]);
    message.extend(mac);
    let sum = checksum(address, ALL_NODES, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());

    let length = message.len() as u16;
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([ICMPV6, 255]);
    packet.extend(address.octets());
    packet.extend(ALL_NODES.octets());
    packet.extend(message);
    packet
}

/// The checksum of an ICMPv6 `message`, over its pseudo-header as well (RFC 4443, section 2.3;
/// RFC 8200, section 8.1; RFC 1071). Of an odd message the last byte is left out: there is none.
fn checksum(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> u16 {
    let (words, _) = message.as_chunks::<2>();
    let words = words.iter().map(|word| u16::from_be_bytes(*word));
    let addresses = from.segments().into_iter().chain(to.segments());
    let rest = [message.len() as u16, u16::from(ICMPV6)];
    let mut sum: u32 = words.chain(addresses).chain(rest).map(u32::from).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// A packet socket in the calling thread's namespace, of no protocol: it receives nothing.
pub(super) fn open() -> io::Result<OwnedFd> {
    Ok(socket(
        AddressFamily::Packet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?)
}

/// Sends `frame` by the netdev `index` of the namespace that `socket` is from. The kernel writes
/// the Ethernet header, by the netdev's own rules (`packet_snd()`, `net/packet/af_packet.c`).
pub(super) fn send(socket: BorrowedFd<'_>, frame: &Frame, index: u32) -> io::Result<()> {
    let mut address = [0; 8];
    address[..frame.to.len()].copy_from_slice(&frame.to);
    let to = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: frame.protocol.to_be(),
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: frame.to.len() as u8,
        sll_addr: address,
    };
    // SAFETY: both pointers are to what lives until the call returns, with their sizes; the
    // descriptor is open.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.payload.as_ptr().cast(),
            frame.payload.len(),
            0,
            (&raw const to).cast(),
            size_of_val(&to) as libc::socklen_t,
        )
    };
    match sent {
        ..0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [0x02, 0x00, 0x5e, 0x10, 0x20, 0x30];

    #[test]
    fn an_arp_announcement() {
        let frame = frame(Ipv4Addr::new(10, 0, 0, 5).into(), MAC);
        #[rustfmt::skip]
        let payload = [
            0x00, 0x01, 0x08, 0x00, 0x06, 0x04, 0x00, 0x01,
            0x02, 0x00, 0x5e, 0x10, 0x20, 0x30, 10, 0, 0, 5,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 10, 0, 0, 5,
        ];
        assert_eq!((frame.to, frame.protocol), ([0xff; 6], 0x0806));
        assert_eq!(frame.payload, payload);
    }

    #[test]
    fn an_unsolicited_neighbour_advertisement() {
        let address = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 5);
        let frame = frame(address.into(), MAC);
        #[rustfmt::skip]
        let payload = [
            0x60, 0x00, 0x00, 0x00, 0x00, 0x20, 0x3a, 0xff,
            0xfd, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x05,
            0xff, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01,
            0x88, 0x00, 0xdc, 0x53, 0x20, 0x00, 0x00, 0x00,
            0xfd, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x05,
            0x02, 0x01, 0x02, 0x00, 0x5e, 0x10, 0x20, 0x30,
        ];
        let (to, protocol) = ([0x33, 0x33, 0, 0, 0, 1], 0x86dd);
        assert_eq!((frame.to, frame.protocol), (to, protocol));
        assert_eq!(frame.payload, payload);
    }

    /// One whose sum is carried over more than once.
    #[test]
    fn a_checksum_of_large_words() {
        let ones = 0xffff;
        let address = Ipv6Addr::new(0x2001, 0xdb8, ones, ones, ones, ones, ones, ones);
        let frame = frame(address.into(), [0xfe, 0xff, 0xff, 0xff, 0xff, 0xfe]);
        assert_eq!(frame.payload[42..44], [0xfc, 0x2e]);
    }
}
