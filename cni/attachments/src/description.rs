// SPDX-License-Identifier: Apache-2.0
//! Description of a pod's rails for programs that use RDMA in the pod. The result of ADD, `rails.json` and a
//! container's environment contain it.

use crate::{Attachment, Rail};
use serde_json::{Value, json};

/// Index of the GID that an InfiniBand port derives from its GUID. This GID contains no IP address (InfiniBand
/// Architecture Specification, volume 1, 4.1.1).
pub const PORTS_OWN_GID: u32 = 0;

impl Attachment {
    /// Returns an object for each rail that has an RDMA device or addresses: mode, interface in the pod, addresses,
    /// netdev on the host, RDMA device, port, GIDs with their indexes, and the attachment's `CNI_IFNAME`. Leaves out
    /// missing values.
    pub fn describe_rails(&self) -> Vec<Value> {
        let rails = self.rails.iter();
        rails.filter_map(|rail| self.describe_rail(rail)).collect()
    }

    /// Describes `rail`. Returns `None` if the rail has neither an RDMA device nor addresses.
    pub fn describe_rail(&self, rail: &Rail) -> Option<Value> {
        let mut description = describe(rail)?;
        description["ifname"] = self.key.interface.to_string().into();
        Some(description)
    }
}

fn describe(rail: &Rail) -> Option<Value> {
    let assigned = &rail.assigned.addresses;
    if rail.rdma.is_none() && assigned.is_empty() {
        return None;
    }
    let addresses = assigned.iter().map(|it| format!("{}/{}", it.ip, it.prefix));
    let mode = if rail.shared.is_some() {
        "share"
    } else {
        "move"
    };
    let mut rail_object = json!({ "mode": mode, "addresses": addresses.collect::<Vec<_>>() });
    if !rail.bare {
        rail_object["interface"] = rail.pod_name.to_string().into();
        rail_object["netdev"] = rail.name().to_string().into();
    }
    if let Some(rdma) = &rail.rdma {
        rail_object["rdmaDevice"] = rdma.name.to_string().into();
    }
    if let Some(first) = rail.gids.first() {
        rail_object["port"] = first.port.into();
        rail_object["gidIndex"] = first.index.into();
        rail_object["gids"] = json!(rail.gids);
    } else if let Some(port) = rail.infiniband_port() {
        rail_object["port"] = port.into();
        rail_object["gidIndex"] = PORTS_OWN_GID.into();
    }
    Some(rail_object)
}
