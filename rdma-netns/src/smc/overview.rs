// SPDX-License-Identifier: Apache-2.0
//! State of SMC in a namespace, for display.

use super::{
    Connection, LinkGroup, PnetEntry, PnetTable, SmcPort, connections, link_groups, ports,
    user_eids,
};
use crate::{ObserveError, linux::cannot_read, netns::Netns};
use nix::libc;
use serde::Serialize;

/// State of SMC in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// Entries of the namespace's pnet table, and the entries of the whole node's RDMA ports.
    pub pnet_entries: Vec<PnetEntry>,
    /// RDMA ports of the node, with the pnet ids that SMC uses.
    pub rdma_ports: Vec<SmcPort>,
    /// User EIDs of the node.
    pub user_eids: Vec<String>,
    /// Link groups of the namespace. If the kernel does not report their namespaces (before Linux 5.18), of the whole
    /// node.
    pub link_groups: Vec<LinkGroup>,
    /// SMC sockets of the namespace.
    pub connections: Vec<Connection>,
}

/// Reads the SMC state of the namespace `netns`, from the caller's namespace. The caller should be in the initial
/// namespace, because only this namespace shows the entries of RDMA ports. Returns `None` if the kernel has no SMC.
pub fn overview(netns: &Netns) -> Result<Option<Overview>, ObserveError> {
    let outside = match PnetTable::open() {
        Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(None),
        opened => opened.and_then(|mut table| table.entries()),
    };
    let mut pnet_entries = outside.map_err(cannot_read("the pnet table"))?;
    let inside = || -> Result<(Vec<PnetEntry>, Vec<Connection>), ObserveError> {
        let entries = PnetTable::open().and_then(|mut table| table.entries());
        Ok((
            entries.map_err(cannot_read("the namespace's pnet table"))?,
            connections().map_err(cannot_read("the SMC sockets"))?,
        ))
    };
    let (entries, connections) = netns
        .run(inside)
        .map_err(cannot_read("the namespace"))
        .flatten()?;
    pnet_entries.retain(|entry| entry.rdma.is_some() && !entries.contains(entry));
    pnet_entries.splice(..0, entries);
    let mut link_groups = link_groups().map_err(cannot_read("the link groups"))?;
    link_groups.retain(|group| [0, netns.id().cookie].contains(&group.netns_cookie));
    Ok(Some(Overview {
        pnet_entries,
        rdma_ports: ports().map_err(cannot_read("the RDMA ports of SMC"))?,
        user_eids: user_eids().map_err(cannot_read("the user EIDs"))?,
        link_groups,
        connections,
    }))
}
