// SPDX-License-Identifier: Apache-2.0
//! The daemon's readers of RDMA ports, applied to a directory tree instead of `/sys`. `integration/fuzz` runs them on
//! hostile input.

use crate::metrics::counters;
use node_state::health::{error_files, ports};
use rdma_netns::DeviceAddress;
use std::path::{Path, PathBuf};

/// Content of the files of RDMA ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortFiles {
    /// States of the ports other than Ethernet ports, by file.
    pub states: Vec<(PathBuf, String)>,
    /// Error counters, each with the value at which the counter stops.
    pub errors: Vec<(u64, u64)>,
    /// Names and values of metrics, for each port.
    pub metrics: Vec<Vec<(String, u64)>>,
}

/// Reads below `sysfs` the states of all ports other than Ethernet ports, and the counters of `rdma`, the RDMA device
/// at `address`. Of the error counters, reads only those with a name in `named`.
pub fn port_files(sysfs: &Path, address: DeviceAddress, rdma: &str, named: &[String]) -> PortFiles {
    let errors = error_files::read(sysfs, &vec![(address, rdma.to_owned())], named);
    let metrics = counters::read(sysfs, rdma).into_iter().map(|port| {
        let counters = port.counters.into_iter();
        counters.map(|it| (it.name, it.value)).collect()
    });
    PortFiles {
        states: ports::eventless(sysfs),
        errors: errors.iter().map(|it| (it.value, it.maximum)).collect(),
        metrics: metrics.collect(),
    }
}
