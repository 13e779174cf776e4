// SPDX-License-Identifier: Apache-2.0
//! Link groups and their links (`smcr linkgroup show`, `smcr link show`). Two hosts that have SMC-R connections with
//! each other share a link group. The kernel keeps a link group for minutes after its last connection
//! (`SMC_LGR_FREE_DELAY_SERV` and `_CLNT`, `net/smc/smc_core.c`).

use super::eids::FAMILY;
use crate::netlink::{
    NetlinkError, attributes,
    generic::{attributes_of, dump_if_known},
    text, u32_of, u64_of,
};
use serde::{Serialize, Serializer};
use std::{fmt, net::Ipv6Addr};

/// `SMC_NETLINK_GET_LINK_SMCR`. The answer has each group, followed by the group's links (`smc_nl_fill_lgr_list()`,
/// `net/smc/smc_core.c`).
const GET_LINK_SMCR: u8 = 3;

/// `SMC_GEN_LGR_SMCR`, `SMC_GEN_LINK_SMCR`
const LGR_SMCR: u16 = 2;
const LINK_SMCR: u16 = 3;

/// `SMC_NLA_LGR_R_*`
mod group {
    pub(super) const ID: u16 = 1;
    pub(super) const ROLE: u16 = 2;
    pub(super) const PNETID: u16 = 4;
    pub(super) const CONNS_NUM: u16 = 6;
    pub(super) const V2_COMMON: u16 = 7;
    pub(super) const NET_COOKIE: u16 = 9;
}

/// `SMC_NLA_LGR_V2_*`
mod version2 {
    pub(super) const VER: u16 = 0;
    pub(super) const NEG_EID: u16 = 3;
    pub(super) const PEER_HOST: u16 = 4;
}

/// `SMC_NLA_LINK_*`
mod link {
    pub(super) const ID: u16 = 1;
    pub(super) const IB_DEV: u16 = 2;
    pub(super) const IB_PORT: u16 = 3;
    pub(super) const GID: u16 = 4;
    pub(super) const PEER_GID: u16 = 5;
    pub(super) const CONN_CNT: u16 = 6;
    pub(super) const STATE: u16 = 10;
}

/// A link group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkGroup {
    /// Number of the group, 8 hexadecimal digits.
    pub id: String,
    /// True if this end is the server of the group.
    pub is_server: bool,
    /// Version of SMC-R, 1 or 2.
    pub version: u8,
    /// Pnet id of the physical network of both ends, in this end's pnet table.
    pub pnet_id: String,
    /// Number of connections in the group.
    pub connections: u32,
    /// Cookie of the group's namespace (`SO_NETNS_COOKIE`). 0: the kernel does not report it (before Linux 5.18).
    pub netns_cookie: u64,
    /// User EID that the ends have in common. Only version 2 has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eid: Option<String>,
    /// Host name of the peer. Only version 2 has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_host: Option<String>,
    /// Links of the group.
    pub links: Vec<GroupLink>,
}

/// A link: a queue pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupLink {
    /// Number of the link in the group.
    pub id: u8,
    /// The RDMA device.
    pub device: String,
    /// Port of the device, from 1.
    pub port: u8,
    /// GID of this end.
    pub gid: Option<Ipv6Addr>,
    /// GID of the other end.
    pub peer_gid: Option<Ipv6Addr>,
    /// Number of connections over the link.
    pub connections: u32,
    /// State of the link.
    pub state: LinkState,
}

/// `enum smc_link_state` (`net/smc/smc_core.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkState(pub u32);

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.pad("unused"),
            1 => f.pad("inactive"),
            2 => f.pad("activating"),
            3 => f.pad("active"),
            other => f.pad(&other.to_string()),
        }
    }
}

impl Serialize for LinkState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Returns all link groups of the node, in any namespace. Returns none if the kernel does not report them (before Linux
/// 5.11).
pub fn link_groups() -> Result<Vec<LinkGroup>, NetlinkError> {
    let answers = dump_if_known(FAMILY, GET_LINK_SMCR)?;
    Ok(parse(answers.bodies()))
}

pub(super) fn parse<'a>(bodies: impl Iterator<Item = &'a [u8]>) -> Vec<LinkGroup> {
    let mut groups: Vec<LinkGroup> = vec![];
    for (kind, value) in bodies.flat_map(|it| attributes(attributes_of(it))) {
        match kind {
            LGR_SMCR => groups.push(parse_group(value)),
            LINK_SMCR => {
                if let Some(group) = groups.last_mut() {
                    group.links.push(parse_link(value));
                }
            }
            _ => {}
        }
    }
    groups
}

fn parse_group(bytes: &[u8]) -> LinkGroup {
    let mut found = LinkGroup {
        version: 1,
        ..LinkGroup::default()
    };
    for (kind, value) in attributes(bytes) {
        match kind {
            group::ID => found.id = format!("{:08x}", u32_of(value).unwrap_or_default()),
            group::ROLE => found.is_server = value.first() == Some(&1),
            group::PNETID => found.pnet_id = trimmed(value).unwrap_or_default(),
            group::CONNS_NUM => found.connections = u32_of(value).unwrap_or_default(),
            group::NET_COOKIE => found.netns_cookie = u64_of(value).unwrap_or_default(),
            group::V2_COMMON => parse_version2(value, &mut found),
            _ => {}
        }
    }
    found
}

fn parse_version2(bytes: &[u8], found: &mut LinkGroup) {
    for (kind, value) in attributes(bytes) {
        match kind {
            version2::VER => found.version = value.first().copied().unwrap_or_default(),
            version2::NEG_EID => found.eid = trimmed(value),
            version2::PEER_HOST => found.peer_host = trimmed(value),
            _ => {}
        }
    }
}

fn parse_link(bytes: &[u8]) -> GroupLink {
    let mut found = GroupLink::default();
    for (kind, value) in attributes(bytes) {
        match kind {
            link::ID => found.id = value.first().copied().unwrap_or_default(),
            link::IB_DEV => found.device = trimmed(value).unwrap_or_default(),
            link::IB_PORT => found.port = value.first().copied().unwrap_or_default(),
            link::GID => found.gid = trimmed(value).and_then(|gid| gid.parse().ok()),
            link::PEER_GID => found.peer_gid = trimmed(value).and_then(|gid| gid.parse().ok()),
            link::CONN_CNT => found.connections = u32_of(value).unwrap_or_default(),
            link::STATE => found.state = LinkState(u32_of(value).unwrap_or_default()),
            _ => {}
        }
    }
    found
}

/// Returns a text without its trailing blanks. Returns `None` if the text consists of blanks only.
fn trimmed(value: &[u8]) -> Option<String> {
    let text = text(value)?.trim_end();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{super::recorded, *};

    /// Recorded from Linux 6.12: both ends of a connection are on one node.
    const ANSWERS: [&str; 4] = [
        "03010000e0000280080001000001000008000600010000000500020001000000050003000100000005000b0000\
        00000005000500000000000c0009000110000000000000070004004e30000008000c000000010008000d000000\
        01006c0007800500000002000000050001000100000005000200020000002500040072646d612d6c6162202020\
        202020202020202020202020202020202020202020000000002500030045494430202020202020202020202020\
        20202020202020202020202020202020000000001c000880050001000100000005000200ff0000000500030002\
        000000",
        "03010000a0000380050001000100000008000a0003000000080006000100000005000300010000000800070003\
        000000090002007278653000000000080008000000010108000900000002012c000400303030303a303030303a\
        303030303a303030303a303030303a666666663a306130393a30303031002c000500303030303a303030303a30\
        3030303a303030303a303030303a666666663a306130393a3030303200",
        "03010000e0000280080001000002000008000600010000000500020000000000050003000100000005000b0000\
        00000005000500000000000c0009000200000000000000070004004e31000008000c000000010008000d000000\
        01006c0007800500000002000000050001000100000005000200020000002500040072646d612d6c6162202020\
        202020202020202020202020202020202020202020000000002500030045494430202020202020202020202020\
        20202020202020202020202020202020000000001c000880050001000100000005000200ff0000000500030002\
        000000",
        "03010000a0000380050001000100000008000a0003000000080006000100000005000300010000000800070002\
        000000090002007278653100000000080008000000020108000900000001012c000400303030303a303030303a\
        303030303a303030303a303030303a666666663a306130393a30303032002c000500303030303a303030303a30\
        3030303a303030303a303030303a666666663a306130393a3030303100",
    ];

    #[test]
    fn groups_and_their_links_are_read() {
        let bodies = ANSWERS.map(recorded);
        let groups = parse(bodies.iter().map(Vec::as_slice));
        let gid = |text: &str| Some(text.parse().expect("a GID"));
        let server = LinkGroup {
            id: "00000100".to_owned(),
            is_server: true,
            version: 2,
            pnet_id: "N0".to_owned(),
            connections: 1,
            netns_cookie: 0x1001,
            eid: Some("EID0".to_owned()),
            peer_host: Some("rdma-lab".to_owned()),
            links: vec![GroupLink {
                id: 1,
                device: "rxe0".to_owned(),
                port: 1,
                gid: gid("::ffff:10.9.0.1"),
                peer_gid: gid("::ffff:10.9.0.2"),
                connections: 1,
                state: LinkState(3),
            }],
        };
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[0], server);
        let client = &groups[1];
        assert_eq!((client.is_server, client.netns_cookie), (false, 2));
        assert_eq!(client.links[0].device, "rxe1");
        assert_eq!(client.links[0].state.to_string(), "active");
    }

    #[test]
    fn a_link_without_a_group_and_halves_of_answers_are_no_group() {
        let bodies = ANSWERS.map(recorded);
        assert_eq!(parse([bodies[1].as_slice()].into_iter()), []);
        for end in 0..bodies[0].len() {
            assert!(parse([&bodies[0][..end]].into_iter()).len() <= 1);
        }
    }
}
