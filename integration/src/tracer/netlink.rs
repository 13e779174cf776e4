// SPDX-License-Identifier: Apache-2.0
//! Names netlink requests, and detects those that change something.

use nix::libc::{
    NETLINK_GENERIC, NETLINK_RDMA, NETLINK_ROUTE, NLM_F_ACK, NLM_F_DUMP, RTM_DELADDR, RTM_DELLINK,
    RTM_DELROUTE, RTM_DELRULE, RTM_GETLINK, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNSID, RTM_NEWROUTE,
    RTM_NEWRULE, RTM_SETLINK,
};

/// `GENL_ID_CTRL` (`include/uapi/linux/genetlink.h`): requests for the numbers of families.
const CONTROLLER: u16 = 0x10;

/// `RTM_NEWLINKPROP`, `RTM_DELLINKPROP`: changes of alternative names (`include/uapi/linux/rtnetlink.h`).
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

/// Returns whether the request with the header `header` changes something, and the request's name. Returns `None`
/// if it is no request.
pub(super) fn request(protocol: i32, header: &[u8]) -> Option<(bool, String)> {
    let number = |at: usize| {
        let bytes = header.get(at..at + 2)?;
        Some(u16::from_ne_bytes(bytes.try_into().ok()?))
    };
    // struct nlmsghdr: length, type, flags
    let (kind, flags) = (number(4)?, i32::from(number(6)?));
    Some(match protocol {
        NETLINK_ROUTE => {
            // each object has four types: NEW, DEL, GET, SET
            let changes = kind & 3 != RTM_GETLINK & 3;
            let name = ROUTE_NAMES.iter().find(|(it, _)| *it == kind);
            let name =
                name.map_or_else(|| format!("type {kind}"), |(_, name)| format!("RTM_{name}"));
            (changes, format!("rtnetlink {name}"))
        }
        NETLINK_RDMA => {
            let operation = kind & 0xff;
            let changes = RDMA_CHANGES.contains(&operation);
            (changes, format!("RDMA netlink, operation {operation}"))
        }
        NETLINK_GENERIC if kind == CONTROLLER => (false, "generic netlink, a family".to_owned()),
        _ => {
            let changes = flags & NLM_F_DUMP != NLM_F_DUMP && flags & NLM_F_ACK != 0;
            (changes, format!("netlink {protocol}, type {kind}"))
        }
    })
}
