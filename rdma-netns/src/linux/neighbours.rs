// SPDX-License-Identifier: Apache-2.0
//! Neighbour table entries in rtnetlink messages (`RTM_*NEIGH`, `include/uapi/linux/neighbour.h`).

use super::{HOST, Linux, cannot_read, ip_of, namespace};
use crate::{
    HardwareAddress, Neighbour, ObserveError,
    netlink::{attributes, u16_of, u32_of},
};
use netlink_packet_route::{RouteNetlinkMessage, neighbour::NeighbourMessage};
use nix::libc::{NDA_DST, NDA_LLADDR};

/// `sizeof(struct ndmsg)`
const HEADER: usize = 12;

/// `NUD_REACHABLE|NUD_STALE|NUD_DELAY|NUD_PROBE|NUD_PERMANENT`: states in which the kernel knows the neighbour's
/// hardware address.
const KNOWN: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x80;

impl Linux {
    /// Returns the neighbours with a known hardware address, on all netdevs of this program's namespace.
    pub fn neighbours(&self) -> Result<Vec<Neighbour>, ObserveError> {
        let question = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        let host = self
            .host()
            .map_err(cannot_read("the neighbours of the host"))?;
        let answers = namespace::dump(host, HOST, "neighbours", &question)?;
        Ok(answers.bodies().filter_map(parse).collect())
    }
}

/// Returns the neighbour in an `RTM_NEWNEIGH`, if its hardware address is known.
pub fn parse(body: &[u8]) -> Option<Neighbour> {
    let index = u32_of(body.get(4..8)?)?;
    let state = u16_of(body.get(8..10)?)?;
    if state & KNOWN == 0 {
        return None;
    }
    let (mut address, mut mac) = (None, None);
    for (kind, value) in attributes(body.get(HEADER..)?) {
        match kind {
            NDA_DST => address = ip_of(value),
            NDA_LLADDR => mac = Some(HardwareAddress(value.to_vec())),
            _ => {}
        }
    }
    Some(Neighbour {
        index,
        address: address?,
        mac: mac?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(state: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![2, 0, 0, 0];
        body.extend(7_u32.to_ne_bytes());
        body.extend(state.to_ne_bytes());
        body.extend([0, 1]);
        for (kind, value) in attributes {
            body.extend((4 + value.len() as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        body
    }

    #[test]
    fn only_who_was_there_is_known() {
        let both: [(u16, &[u8]); 2] =
            [(NDA_DST, &[10, 0, 0, 5]), (NDA_LLADDR, &[2, 0, 0, 0, 0, 9])];
        let neighbour = Neighbour {
            index: 7,
            address: "10.0.0.5".parse().expect("an address"),
            mac: "02:00:00:00:00:09".parse().expect("an address"),
        };
        for (state, known) in [
            (0x01, false), // INCOMPLETE
            (0x02, true),
            (0x04, true),
            (0x08, true),
            (0x10, true),
            (0x20, false), // FAILED
            (0x40, false), // NOARP
            (0x80, true),
        ] {
            let found = parse(&entry(state, &both));
            assert_eq!(found, known.then(|| neighbour.clone()), "{state:#x}");
        }
        assert_eq!(parse(&entry(0x04, &both[..1])), None, "nobody knows where");
        assert_eq!(parse(&[0; 3]), None);
    }
}
