// SPDX-License-Identifier: Apache-2.0
//! SMC-R set-up of a pod, which a restore removes.

use rdma_netns::{
    NetnsSide,
    smc::{PnetEntry, PnetId},
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The SMC-R part of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Smc {
    /// SMC-R status of the pod's interfaces together.
    pub state: SmcStatus,
    /// The reason why SMC-R is off, or why some interfaces have no SMC-R.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The interfaces that have SMC-R.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Carried>,
    /// The pnet entries that this plugin has added. Other attachments' records can contain equal entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<PlacedEntry>,
    /// Pnet entries of other attachments or programs that have a pnet id of this plugin's entries. The kernel removes
    /// them together with this plugin's entries. The plugin then adds them again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub returning: Vec<PlacedEntry>,
    /// The user EID that this plugin has added. Other attachments' records can contain the same EID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ueid: Option<String>,
    /// True if this plugin set `net.smc.tcp2smc` in the pod.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tcp2smc: bool,
    /// The value of `net.smc.smcr_max_links_per_lgr` in the pod before this plugin set it to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_links: Option<u8>,
}

/// SMC-R status of a pod that requested SMC-R.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SmcStatus {
    /// SMC-R is set up for one or more interfaces.
    Active,
    /// SMC-R is not set up. The pod's connections use TCP.
    Off,
}

impl fmt::Display for SmcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// An interface whose connections RDMA can carry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Carried {
    /// Name of the interface in the pod.
    pub interface: String,
    /// The pnet id that the netdev and the RDMA port have in common.
    pub pnet_id: PnetId,
    /// The RDMA device.
    pub rdma_device: String,
    /// The RDMA device's port, from 1.
    pub port: u8,
    /// The protocol that the kernel will probably use for the interface's connections.
    pub by: Fit,
}

/// The protocol that carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fit {
    /// SMC-Rv1. The RDMA NICs of both ends must be in one layer 2 network.
    V1,
    /// SMC-Rv2.
    V2,
    /// SMC-R with the GID that the driver chooses. An iWARP device, such as an eRDMA device, has only one GID, and this
    /// GID does not contain an IP address.
    Device,
}

/// A pnet entry, and the namespace whose table has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedEntry {
    /// The namespace.
    pub at: NetnsSide,
    /// The entry.
    #[serde(flatten)]
    pub entry: PnetEntry,
}

impl Smc {
    /// Returns the SMC-R part for a pod without SMC-R.
    pub fn off(reason: String) -> Self {
        Self {
            state: SmcStatus::Off,
            reason: Some(reason),
            interfaces: vec![],
            entries: vec![],
            returning: vec![],
            ueid: None,
            tcp2smc: false,
            max_links: None,
        }
    }

    /// Returns true if there are SMC-R settings to remove.
    pub fn is_set(&self) -> bool {
        let has_entries = !self.entries.is_empty() || !self.returning.is_empty();
        has_entries || self.ueid.is_some() || self.tcp2smc || self.max_links.is_some()
    }

    /// Returns true if this plugin added node-wide settings for the pod. Other pods can share them.
    pub fn has_nodes(&self) -> bool {
        self.ueid.is_some() || self.entries.iter().any(|it| it.at == NetnsSide::Host)
    }

    /// Returns true if the record says that this plugin added `entry` at `side`.
    pub fn has(&self, side: NetnsSide, entry: &PnetEntry) -> bool {
        let is_it = |it: &PlacedEntry| it.at == side && it.entry == *entry;
        self.entries.iter().any(is_it)
    }
}
