// SPDX-License-Identifier: Apache-2.0
//! Packets of a probe, and the parser of answers.

use crate::{
    HardwareAddress,
    linux::{
        ip_of,
        packet_socket::{ARP, ETHERNET_AND_IPV4, Mac, arp_request},
    },
    probe::Sign,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `ETH_P_IPV6` (`include/uapi/linux/if_ether.h`)
pub(super) const IPV6: u16 = 0x86dd;

/// `IPPROTO_ICMPV6`, and the types of its neighbour messages (RFC 4861, sections 4.3 and 4.4).
pub(super) const ICMPV6: u8 = 58;
pub(super) const SOLICITATION: u8 = 135;
pub(super) const ADVERTISEMENT: u8 = 136;

/// Offsets in an ARP packet: the sender's hardware address, the sender's IP address, and the target's IP address (RFC
/// 826, with the address lengths of Ethernet and IPv4).
pub(super) const SENDER_MAC: usize = 8;
pub(super) const SENDER: usize = 14;
pub(super) const TARGET: usize = 24;

/// Offsets in an IPv6 packet with an ICMPv6 message: next header and source in the IPv6 header; then the message's
/// type, a neighbour message's target, and the end of this message.
pub(super) const NEXT_HEADER: usize = 6;
const SOURCE: usize = 8;
pub(super) const TYPE: usize = 40;
pub(super) const ND_TARGET: usize = 48;
const END: usize = 64;

/// Returns an ARP probe: a request with the sender 0.0.0.0, so that no host learns an address from it (RFC 5227,
/// section 2.1.1).
pub(super) fn arp_probe(address: Ipv4Addr, mac: Mac) -> Vec<u8> {
    arp_request(mac, Ipv4Addr::UNSPECIFIED, address)
}

/// Returns a neighbour solicitation of duplicate address detection, with its IPv6 header. The source is the unspecified
/// address, and the packet has no source link-layer address (RFC 4862, section 5.4.2; RFC 4861, section 4.3). A raw
/// socket would choose a source of its own (`ip6_dst_lookup_tail()`).
pub(super) fn solicitation(address: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    message.extend(address.octets());
    let length = message.len() as u16;
    let (source, destination) = (Ipv6Addr::UNSPECIFIED, group(address));
    let sum = checksum(source, destination, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([ICMPV6, 255]); // hop limit 255: the packet is from this link
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend(message);
    packet
}

/// Returns the solicited-node multicast address of `address` (RFC 4291, section 2.7.1).
pub(super) fn group(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// Returns the Ethernet address of a multicast group (RFC 2464, section 7).
pub(super) fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// Returns the ICMPv6 checksum over a pseudo-header and the message (RFC 8200, section 8.1).
fn checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let mut bytes = source.octets().to_vec();
    bytes.extend(destination.octets());
    bytes.extend((message.len() as u32).to_be_bytes());
    bytes.extend([0, 0, 0, ICMPV6]);
    bytes.extend(message);
    let pairs = bytes.chunks(2);
    let pairs =
        pairs.map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |it| (*it).into()));
    let sum: u32 = pairs.sum();
    let folded = (sum >> 16) + (sum & 0xffff);
    !((folded >> 16) + (folded & 0xffff)) as u16
}

/// The IP address that a received packet is about, and the packet's sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) address: IpAddr,
    pub(super) by: HardwareAddress,
    pub(super) sign: Sign,
}

/// Decodes the packet of `protocol` from `from`. Returns `None` for packets that claim no address, such as a neighbour
/// solicitation from a specified address. An ARP packet claims its sender's IP address. An ARP probe, whose sender has
/// no IP address, claims its target's.
pub(super) fn read(protocol: u16, packet: &[u8], from: &[u8]) -> Option<Claim> {
    match protocol {
        ARP => read_arp(packet),
        IPV6 => read_neighbour_message(packet, from),
        _ => None,
    }
}

fn read_arp(packet: &[u8]) -> Option<Claim> {
    let address = |at: usize| ip_of(packet.get(at..at + 4)?);
    if packet.get(..6)? != ETHERNET_AND_IPV4 {
        return None;
    }
    let (sender, target) = (address(SENDER)?, address(TARGET)?);
    let is_request = packet[6..8] == [0, 1];
    let (address, sign) = match sender.is_unspecified() {
        false => (sender, Sign::Has),
        true if is_request => (target, Sign::Probes),
        true => return None,
    };
    Some(Claim {
        address,
        by: HardwareAddress(packet[SENDER_MAC..SENDER].to_vec()),
        sign,
    })
}

fn read_neighbour_message(packet: &[u8], from: &[u8]) -> Option<Claim> {
    let address = |at: usize| ip_of(packet.get(at..at + 16)?);
    // hop limit 255: no router has forwarded the packet (RFC 4861, section 7.1)
    if packet.len() < END || packet[NEXT_HEADER] != ICMPV6 || packet[NEXT_HEADER + 1] != 255 {
        return None;
    }
    let sign = match packet[TYPE] {
        ADVERTISEMENT => Sign::Has,
        SOLICITATION if address(SOURCE)?.is_unspecified() => Sign::Probes,
        _ => return None,
    };
    Some(Claim {
        address: address(ND_TARGET)?,
        by: HardwareAddress(from.to_vec()),
        sign,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [0x02, 0x00, 0x5e, 0x10, 0x20, 0x30];
    const OTHER: Mac = [0x02, 0x00, 0x5e, 0x10, 0x20, 0x31];

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_arp_probe() {
        #[rustfmt::skip]
        let packet = [
            0x00, 0x01, 0x08, 0x00, 0x06, 0x04, 0x00, 0x01,
            0x02, 0x00, 0x5e, 0x10, 0x20, 0x30, 0, 0, 0, 0,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 10, 0, 0, 5,
        ];
        assert_eq!(arp_probe(Ipv4Addr::new(10, 0, 0, 5), MAC), packet);
    }

    /// `tests/kernel/probe.rs` tests that a kernel accepts the packet with this checksum.
    #[test]
    fn a_solicitation_of_duplicate_address_detection() {
        let packet = solicitation("fd00::5".parse().expect("an address"));
        #[rustfmt::skip]
        let expected = [
            0x60, 0x00, 0x00, 0x00, 0x00, 0x18, 0x3a, 0xff,
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0xff, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0xff, 0x00, 0x00, 0x05,
            0x87, 0x00, 0x7d, 0x9d, 0x00, 0x00, 0x00, 0x00,
            0xfd, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x05,
        ];
        assert_eq!(packet, expected);
    }

    #[test]
    fn a_group_and_its_address() {
        let group = group("fd00::1234:5678".parse().expect("an address"));
        assert_eq!(ip("ff02::1:ff34:5678"), group);
        assert_eq!(group_mac(group), [0x33, 0x33, 0xff, 0x34, 0x56, 0x78]);
    }

    #[test]
    fn arp_packets() {
        let probe = arp_probe(Ipv4Addr::new(10, 0, 0, 5), OTHER);
        let claim_of = |packet: &[u8]| read(ARP, packet, &OTHER).map(|it| (it.address, it.sign));
        assert_eq!(claim_of(&probe), Some((ip("10.0.0.5"), Sign::Probes)));
        let by = read(ARP, &probe, &[]).expect("a probe").by;
        assert_eq!(by.0, OTHER);
        let mut answer = probe.clone();
        answer[7] = 2;
        assert_eq!(claim_of(&answer), None, "an answer without a sender");
        answer[SENDER..SENDER + 4].copy_from_slice(&[10, 0, 0, 5]);
        assert_eq!(claim_of(&answer), Some((ip("10.0.0.5"), Sign::Has)));
        let mut request = probe.clone();
        request[SENDER..SENDER + 4].copy_from_slice(&[10, 0, 0, 7]);
        assert_eq!(claim_of(&request), Some((ip("10.0.0.7"), Sign::Has)));
        for length in 0..probe.len() {
            assert_eq!(claim_of(&probe[..length]), None);
        }
        request[4] = 20;
        assert_eq!(claim_of(&request), None, "InfiniBand's");
    }

    #[test]
    fn neighbour_messages() {
        let probe = solicitation("fd00::5".parse().expect("an address"));
        let claim_of = |packet: &[u8]| read(IPV6, packet, &OTHER).map(|it| (it.address, it.sign));
        assert_eq!(claim_of(&probe), Some((ip("fd00::5"), Sign::Probes)));
        for length in 0..probe.len() {
            assert_eq!(claim_of(&probe[..length]), None);
        }
        let change = |at: usize, value: u8| {
            let mut packet = probe.clone();
            packet[at] = value;
            packet
        };
        let answer = change(TYPE, ADVERTISEMENT);
        assert_eq!(claim_of(&answer), Some((ip("fd00::5"), Sign::Has)));
        assert_eq!(claim_of(&change(SOURCE, 0xfd)), None, "resolution");
        assert_eq!(
            claim_of(&change(NEXT_HEADER + 1, 64)),
            None,
            "came by a router"
        );
        assert_eq!(claim_of(&change(NEXT_HEADER, 17)), None, "UDP");
        assert_eq!(claim_of(&change(TYPE, 134)), None, "a router advertisement");
    }
}
