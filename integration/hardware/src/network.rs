// SPDX-License-Identifier: Apache-2.0
//! The network headers of RoCE. The receiver of a datagram gets 40 bytes before the data: an IPv6 header, a GRH, or an
//! IPv4 header in the last 20 of these bytes. IPv6 header and GRH have the same layout.

/// Bytes of the network header.
pub const HEADER: usize = 40;
const IPV4: usize = 20;
/// The protocol number of UDP.
const PROTOCOL: u8 = 17;
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Returns true if a GID is an IPv4 address.
pub fn is_ipv4(gid: &[u8; 16]) -> bool {
    gid.starts_with(&MAPPED)
}

/// The contents of a network header.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The GID of the sender.
    pub from: [u8; 16],
    /// The GID of the receiver.
    pub to: [u8; 16],
    /// Traffic class, or type of service.
    pub traffic_class: u8,
    /// Hop limit, or time to live.
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

impl Route {
    /// The header of a datagram of `len` bytes.
    pub fn header(&self, len: usize) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        let len = u16::try_from(len).unwrap_or(u16::MAX);
        if is_ipv4(&self.to) {
            let [high, low] = len.saturating_add(IPV4 as u16).to_be_bytes();
            let ipv4 = &mut header[HEADER - IPV4..];
            ipv4[..4].copy_from_slice(&[0x45, self.traffic_class, high, low]);
            // the flag "don't fragment"
            ipv4[6] = 0x40;
            ipv4[8..10].copy_from_slice(&[self.hop_limit, PROTOCOL]);
            ipv4[12..16].copy_from_slice(&self.from[12..]);
            ipv4[16..20].copy_from_slice(&self.to[12..]);
            let sum: u32 = ipv4
                .chunks_exact(2)
                .map(|it| u32::from(it[0]) << 8 | u32::from(it[1]))
                .sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            ipv4[10..12].copy_from_slice(&sum.to_be_bytes());
            return header;
        }
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label;
        header[..4].copy_from_slice(&first.to_be_bytes());
        header[4..6].copy_from_slice(&len.to_be_bytes());
        header[6..8].copy_from_slice(&[PROTOCOL, self.hop_limit]);
        header[8..24].copy_from_slice(&self.from);
        header[24..].copy_from_slice(&self.to);
        header
    }
}
