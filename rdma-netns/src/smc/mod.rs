// SPDX-License-Identifier: Apache-2.0
//! SMC-R: RDMA carries the payload of a TCP connection if both ends support it.
//!
//! | module | owns |
//! |---|---|
//! | `pnet` | the pnet table, which assigns netdevs and RDMA ports to physical networks |
//! | `eids` | user EIDs, of which SMC-Rv2 needs at least one |
//! | `devices` | the RDMA devices that SMC uses |
//! | `state` | SMC state for planning a pod's set-up |
//! | `groups` | link groups and their links |
//! | `diag` | SMC sockets, and the transport of their payload (SMC-R, SMC-D or TCP) |
//! | `overview` | the state of SMC in a namespace, for display |
//! | `reason` | reasons why a connection fell back to TCP, in words |

mod devices;
mod diag;
mod eids;
mod groups;
mod overview;
mod pnet;
mod reason;
mod state;

pub use devices::{SmcPort, ports, used_devices};
pub use diag::{Connection, ConnectionLink, Fallback, Mode, State, connections};
pub use eids::{UserEids, user_eids};
pub use groups::{GroupLink, LinkGroup, LinkState, link_groups};
pub use overview::{Overview, overview};
pub use pnet::{InvalidPnetId, PnetEntry, PnetId, PnetTable, PnetTaken, missing};
pub use reason::Reason;
pub use state::{HeldConnections, SmcState};

use crate::netlink::generic;

/// A message of SMC. Each field decodes the message as the answer to another request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmcAnswer {
    /// Answer to `CTRL_CMD_GETFAMILY`.
    pub family: Option<u16>,
    /// Answer to `SMC_PNETID_GET`.
    pub entry: Option<PnetEntry>,
    /// Answer to `SMC_NETLINK_DUMP_UEID`.
    pub user_eid: Option<String>,
    /// Answer to `SMC_NETLINK_GET_DEV_SMCR`.
    pub ports: Vec<SmcPort>,
    /// Answer to `SMC_NETLINK_GET_LINK_SMCR`.
    pub groups: Vec<LinkGroup>,
    /// Answer to `SOCK_DIAG_BY_FAMILY`.
    pub connection: Option<Connection>,
}

/// Decodes a message of SMC as the answer to each kind of request.
pub(crate) fn decode(body: &[u8]) -> SmcAnswer {
    SmcAnswer {
        family: generic::parse_id(body),
        entry: pnet::parse_entry(body),
        user_eid: eids::parse(body),
        ports: devices::parse(body),
        groups: groups::parse([body].into_iter()),
        connection: diag::parse(body),
    }
}

/// Returns the bytes that the hexadecimal digits encode.
#[cfg(test)]
fn recorded(digits: &str) -> Vec<u8> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    assert!(rest.is_empty());
    let byte = |pair: &[u8; 2]| {
        let text = str::from_utf8(pair).expect("digits");
        u8::from_str_radix(text, 16).expect("digits")
    };
    pairs.iter().map(byte).collect()
}
