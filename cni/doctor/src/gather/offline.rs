// SPDX-License-Identifier: Apache-2.0
//! Parsers of single files. They need no node: `integration/fuzz` runs them on hostile input.

use super::{
    super::facts::{Lease, Memlock},
    records, services, system,
};
use rdma_netns::RdmaMode;
use std::net::IpAddr;

/// Results of parsing one text as each of these files.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// Names of modules, from `modules.dep`.
    pub modules: Vec<String>,
    /// Modes of the RDMA subsystem, from a file of `modprobe.d`.
    pub options: Vec<RdmaMode>,
    /// Mode of the RDMA subsystem, from a systemd unit.
    pub unit: Option<RdmaMode>,
    /// Naming policies, from udev rules.
    pub policies: Vec<String>,
    /// Limit of locked memory, from `/proc/PID/limits`.
    pub memlock: Memlock,
    /// Lease of `address`, from host-local's file.
    pub lease: Option<Lease>,
}

/// Parses `text` as each file of [`Parsed`]. `address` is the file name of the lease.
pub fn parse(text: &str, address: IpAddr) -> Parsed {
    Parsed {
        modules: text.lines().filter_map(system::module).collect(),
        options: text.lines().filter_map(system::option).collect(),
        unit: system::unit(text),
        policies: text.lines().filter_map(system::policy).collect(),
        memlock: services::limit(text),
        lease: records::lease(text, address),
    }
}
