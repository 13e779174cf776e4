// SPDX-License-Identifier: Apache-2.0
//! What of SMC-R a pod has, and what of it has to be taken away with the pod.

use rdma_netns::{
    NetnsSide,
    smc::{PnetEntry, PnetId},
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The part of the record that is about SMC-R.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Smc {
    /// Whether any interface of the pod has it.
    pub state: SmcStatus,
    /// Why it is off, or what goes without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The interfaces that have it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Carried>,
    /// The pnet entries that this plugin has added; other records can have the same ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<PlacedEntry>,
    /// Entries of others that go with ours, since they have the same id, until they are back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub returning: Vec<PlacedEntry>,
    /// The user EID that this plugin has added; other records can have the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ueid: Option<String>,
    /// Whether this plugin has set `net.smc.tcp2smc` in the pod.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tcp2smc: bool,
    /// What `net.smc.smcr_max_links_per_lgr` was in the pod before this plugin made it 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_links: Option<u8>,
}

/// Whether a pod that was to have SMC-R has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SmcStatus {
    /// At least one interface has it.
    Active,
    /// Nothing is set up; the pod's connections are TCP.
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
    /// Its name in the pod.
    pub interface: String,
    /// The id that it has in common with the RDMA port.
    pub pnet_id: PnetId,
    /// The RDMA device.
    pub rdma_device: String,
    /// The RDMA device's port, from 1.
    pub port: u8,
    /// How the kernel was to carry its connections when that was predicted.
    pub by: Fit,
}

/// How a connection is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fit {
    /// SMC-Rv1: between machines on one link.
    V1,
    /// SMC-Rv2.
    V2,
    /// As the driver likes: iWARP, as erdma has it, knows one GID, which is no address.
    Device,
}

/// A pnet entry, and in which namespace's table it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedEntry {
    /// The namespace.
    pub at: NetnsSide,
    /// The entry.
    #[serde(flatten)]
    pub entry: PnetEntry,
}

impl Smc {
    /// Nothing is set up, and why.
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

    /// Whether there is something that has to be taken away again.
    pub fn is_set(&self) -> bool {
        let has_entries = !self.entries.is_empty() || !self.returning.is_empty();
        has_entries || self.ueid.is_some() || self.tcp2smc || self.max_links.is_some()
    }

    /// Whether it has anything of the node's, which other pods can have as well.
    pub fn has_nodes(&self) -> bool {
        self.ueid.is_some() || self.entries.iter().any(|it| it.at == NetnsSide::Host)
    }

    /// Whether `entry` is among those that were added at `side`.
    pub fn has(&self, side: NetnsSide, entry: &PnetEntry) -> bool {
        let is_it = |it: &PlacedEntry| it.at == side && it.entry == *entry;
        self.entries.iter().any(is_it)
    }
}
