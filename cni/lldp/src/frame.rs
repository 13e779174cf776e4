// SPDX-License-Identifier: Apache-2.0
//! Parser of an Ethernet frame with an LLDPDU (IEEE 802.1AB, clauses 8 and 9.2.8.7).

use crate::{Neighbour, printable};
use std::net::Ipv6Addr;

/// `ETH_P_LLDP` (`include/uapi/linux/if_ether.h`)
pub(crate) const ETHERTYPE: u16 = 0x88cc;

/// Group addresses of LLDP (IEEE 802.1AB, table 7-1): nearest bridge, nearest non-TPMR bridge, nearest customer bridge.
pub(crate) const GROUPS: [[u8; 6]; 3] = [
    [0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e],
    [0x01, 0x80, 0xc2, 0x00, 0x00, 0x03],
    [0x01, 0x80, 0xc2, 0x00, 0x00, 0x00],
];

/// Length of an Ethernet header (destination, source, type), bytes.
const HEADER: usize = 14;

/// Types of TLVs (IEEE 802.1AB, table 8-1).
const END: u8 = 0;
const CHASSIS: u8 = 1;
const PORT: u8 = 2;
const TTL: u8 = 3;
const PORT_DESCRIPTION: u8 = 4;
const SYSTEM_NAME: u8 = 5;

/// Subtypes of identifiers that are not text: hardware address, then network address (tables 8-2 and 8-3).
const CHASSIS_KINDS: [u8; 2] = [4, 5];
const PORT_KINDS: [u8; 2] = [3, 4];

/// Families of a network address (IANA, Address Family Numbers).
const IPV4: u8 = 1;
const IPV6: u8 = 2;

/// Reason why a frame is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the LLDP frame {0}")]
pub struct Malformed(&'static str);

/// Parses a frame, beginning with its Ethernet header.
///
/// # Errors
/// The frame is not LLDP, is cut off, has an invalid TLV, or does not begin with the three mandatory TLVs in their
/// order.
pub fn parse(frame: &[u8]) -> Result<Neighbour, Malformed> {
    let header = frame.split_at_checked(HEADER);
    let (header, mut rest) = header.ok_or(Malformed("has no Ethernet header"))?;
    if !GROUPS.iter().any(|group| header.starts_with(group)) {
        return Err(Malformed("is not sent to a group address of LLDP"));
    }
    if !header.ends_with(&ETHERTYPE.to_be_bytes()) {
        return Err(Malformed("has another Ethernet type"));
    }
    let mut mandatory = |wanted| match tlv(&mut rest)? {
        (kind, value) if kind == wanted => Ok(value),
        _ => Err(Malformed("does not begin with chassis, port and TTL")),
    };
    let chassis = identifier(mandatory(CHASSIS)?, CHASSIS_KINDS)?;
    let port_id = identifier(mandatory(PORT)?, PORT_KINDS)?;
    let ttl = mandatory(TTL)?.first_chunk();
    let ttl = u16::from_be_bytes(*ttl.ok_or(Malformed("has a TTL of less than two bytes"))?);
    let (mut name, mut description) = (None, None);
    // the end TLV is optional, and Ethernet padding may follow it
    while !rest.is_empty() {
        match tlv(&mut rest)? {
            (END, []) => break,
            (END, _) => return Err(Malformed("has an end TLV with a value")),
            (CHASSIS | PORT | TTL, _) => return Err(Malformed("has a mandatory TLV twice")),
            (PORT_DESCRIPTION, value) => description = printable(value),
            (SYSTEM_NAME, value) => name = printable(value),
            _ => {}
        }
    }
    Ok(Neighbour {
        chassis,
        port_id,
        name,
        description,
        ttl,
    })
}

/// Removes the first TLV from `rest`: 7 bits of type, 9 bits of length, then the value.
fn tlv<'a>(rest: &mut &'a [u8]) -> Result<(u8, &'a [u8]), Malformed> {
    let cut_off = Malformed("is cut off");
    let (header, value) = rest.split_first_chunk().ok_or(cut_off)?;
    let header = u16::from_be_bytes(*header);
    let (kind, length) = (header >> 9, usize::from(header & 0x1ff));
    let (value, after) = value.split_at_checked(length).ok_or(cut_off)?;
    *rest = after;
    Ok((kind as u8, value))
}

/// Returns an identifier as text. `value` is the identifier's subtype and up to 255 bytes. `mac` and `network` are the
/// subtypes that are not text.
fn identifier(value: &[u8], [mac, network]: [u8; 2]) -> Result<String, Malformed> {
    let text = match value {
        [kind, address @ ..] if *kind == mac && address.len() == 6 => {
            let bytes: Vec<String> = address.iter().map(|it| format!("{it:02x}")).collect();
            Some(bytes.join(":"))
        }
        [kind, IPV4, a, b, c, d] if *kind == network => Some(format!("{a}.{b}.{c}.{d}")),
        [kind, IPV6, address @ ..] if *kind == network => {
            let address: Result<[u8; 16], _> = address.try_into();
            address.ok().map(|it| Ipv6Addr::from(it).to_string())
        }
        [_, text @ ..] => printable(text),
        [] => None,
    };
    text.ok_or(Malformed("has an identifier that cannot be read"))
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
