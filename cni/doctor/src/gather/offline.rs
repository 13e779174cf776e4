// SPDX-License-Identifier: Apache-2.0
//! Readers of a node's single files that need no node: `integration/fuzz` runs them on hostile input.

use super::{
    super::facts::{Lease, Memlock},
    records, services, system,
};
use rdma_netns::RdmaMode;
use std::net::IpAddr;

/// Results of reading one text as each of the files that `doctor` reads.
#[derive(Clone, Debug)]
pub struct Told {
    /// Modules, from `modules.dep`.
    pub modules: Vec<String>,
    /// Modes of the RDMA subsystem, from a file of `modprobe.d`.
    pub options: Vec<RdmaMode>,
    /// Mode of the RDMA subsystem, from a systemd unit.
    pub unit: Option<RdmaMode>,
    /// Policies of names, from udev rules.
    pub policies: Vec<String>,
    /// Limit, from `/proc/PID/limits`.
    pub memlock: Memlock,
    /// Lease of `address`.
    pub lease: Option<Lease>,
}

/// Reads `text` in place of each file that `doctor` reads. For a lease, `address` is the file's name.
pub fn told(text: &str, address: IpAddr) -> Told {
    Told {
        modules: text.lines().filter_map(system::module).collect(),
        options: text.lines().filter_map(system::option).collect(),
        unit: system::unit(text),
        policies: text.lines().filter_map(system::policy).collect(),
        memlock: services::limit(text),
        lease: records::lease(text, address),
    }
}
