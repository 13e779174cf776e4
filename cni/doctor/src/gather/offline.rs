// SPDX-License-Identifier: Apache-2.0
//! The readers of single texts of a node, without the node: `integration/fuzz` gives them hostile input.

use super::{
    super::facts::{Lease, Memlock},
    records, services, system,
};
use rdma_netns::RdmaMode;
use std::net::IpAddr;

/// One text, read as each of the files that `doctor` reads.
#[derive(Clone, Debug)]
pub struct Told {
    /// As `modules.dep`: modules.
    pub modules: Vec<String>,
    /// As a file of `modprobe.d`: modes of the RDMA subsystem.
    pub options: Vec<RdmaMode>,
    /// As a unit of systemd.
    pub unit: Option<RdmaMode>,
    /// As rules of udev: policies of names.
    pub policies: Vec<String>,
    /// As `/proc/PID/limits`.
    pub memlock: Memlock,
    /// As a lease of `address`.
    pub lease: Option<Lease>,
}

/// Reads `text`; as a lease it is one of `address`.
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
