// SPDX-License-Identifier: Apache-2.0
//! Whether a netlink request changes something, and what it is called.

use nix::libc::{
    NETLINK_GENERIC, NETLINK_RDMA, NETLINK_ROUTE, NLM_F_ACK, NLM_F_DUMP, RTM_DELADDR, RTM_DELLINK,
    RTM_DELROUTE, RTM_DELRULE, RTM_GETLINK, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNSID, RTM_NEWROUTE,
    RTM_NEWRULE, RTM_SETLINK,
};

/// `GENL_ID_CTRL` (`include/uapi/linux/genetlink.h`): families are asked for.
const CONTROLLER: u16 = 0x10;

/// `RTM_NEWLINKPROP`, `RTM_DELLINKPROP`: alternative names (`include/uapi/linux/rtnetlink.h`).
const LINK_PROPERTIES: [u16; 2] = [108, 109];

/// `RDMA_NLDEV_CMD_{SET, NEWLINK, DELLINK, SYS_SET}` (`include/uapi/rdma/rdma_netlink.h`).
const RDMA_CHANGES: [u16; 4] = [2, 3, 4, 7];

const ROUTE_NAMES: [(u16, &str); 12] = [
    (RTM_NEWLINK, "NEWLINK"),
    (RTM_DELLINK, "DELLINK"),
    (RTM_SETLINK, "SETLINK"),
    (RTM_NEWADDR, "NEWADDR"),
    (RTM_DELADDR, "DELADDR"),
    (RTM_NEWROUTE, "NEWROUTE"),
    (RTM_DELROUTE, "DELROUTE"),
    (RTM_NEWRULE, "NEWRULE"),
    (RTM_DELRULE, "DELRULE"),
    (RTM_NEWNSID, "NEWNSID"),
    (LINK_PROPERTIES[0], "NEWLINKPROP"),
    (LINK_PROPERTIES[1], "DELLINKPROP"),
];

/// Bytes of a request that are read: a move's namespace, and the list of a virtual function's settings, are among the
/// first attributes.
pub(super) const LENGTH: usize = 256;

/// What comes before the attributes: `struct nlmsghdr`, and for links `struct ifinfomsg`.
const HEADER: usize = 16;

/// `IFLA_NET_NS_FD`, `RDMA_NLDEV_NET_NS_FD`: the object goes into another namespace.
const MOVES: [u16; 2] = [28, 68];

/// `IFLA_VFINFO_LIST`: a physical function sets up a virtual one.
const OF_FUNCTION: u16 = 22;

/// In the words of a point that moves something.
pub(crate) const MOVE: &str = ", into another namespace";

/// In the words of a point that sets up a virtual function.
pub(crate) const FUNCTION: &str = ", of a virtual function";

/// Whether the request that begins with `text` changes something, and its name. None: it is no request.
pub(super) fn request(protocol: i32, text: &[u8]) -> Option<(bool, String)> {
    // struct nlmsghdr: length, type, flags
    let (kind, flags) = (number(text, 4)?, i32::from(number(text, 6)?));
    Some(match protocol {
        NETLINK_ROUTE => {
            // each object has four types: NEW, DEL, GET, SET
            let changes = kind & 3 != RTM_GETLINK & 3;
            let name = ROUTE_NAMES.iter().find(|(it, _)| *it == kind);
            let name =
                name.map_or_else(|| format!("type {kind}"), |(_, name)| format!("RTM_{name}"));
            let words = match kind {
                RTM_NEWLINK | RTM_SETLINK => special(text, 2 * HEADER),
                _ => "",
            };
            (changes, format!("rtnetlink {name}{words}"))
        }
        NETLINK_RDMA => {
            let operation = kind & 0xff;
            let changes = RDMA_CHANGES.contains(&operation);
            let words = special(text, HEADER);
            (
                changes,
                format!("RDMA netlink, operation {operation}{words}"),
            )
        }
        NETLINK_GENERIC if kind == CONTROLLER => (false, "generic netlink, a family".to_owned()),
        _ => {
            let changes = flags & NLM_F_DUMP != NLM_F_DUMP && flags & NLM_F_ACK != 0;
            (changes, format!("netlink {protocol}, type {kind}"))
        }
    })
}

/// What a request does that is a point of its own for [`crate::killed`], by its attributes, which begin at `at`.
fn special(text: &[u8], mut at: usize) -> &'static str {
    let end = number(text, 0).map_or(0, usize::from).min(text.len());
    // struct nlattr: length, type
    while let (true, Some(length), Some(kind)) = (at < end, number(text, at), number(text, at + 2))
    {
        match kind & !NESTED {
            kind if MOVES.contains(&kind) => return MOVE,
            OF_FUNCTION => return FUNCTION,
            _ => at += usize::from(length.max(4)).next_multiple_of(4),
        }
    }
    ""
}

/// `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER` (`include/uapi/linux/netlink.h`).
const NESTED: u16 = 0xc000;

fn number(text: &[u8], at: usize) -> Option<u16> {
    let bytes = text.get(at..at + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}
