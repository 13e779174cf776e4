// SPDX-License-Identifier: Apache-2.0
//! What the daemon reads of RDMA ports, of a tree of files in the place of `/sys`: `integration/fuzz` holds it against
//! hostile input.

use crate::{
    health::{error_files, ports},
    metrics::counters,
};
use rdma_netns::DeviceAddress;
use std::path::{Path, PathBuf};

/// What the files of an RDMA device's ports say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortFiles {
    /// States that no event tells, by their files.
    pub states: Vec<(PathBuf, String)>,
    /// Error counters, each with the value at which it sticks.
    pub errors: Vec<(u64, u64)>,
    /// Names and values of metrics, for each port.
    pub metrics: Vec<Vec<(String, u64)>>,
}

/// Those of `rdma`, the device at `address`, below `sysfs`; of its error counters the `named` ones.
pub fn port_files(sysfs: &Path, address: DeviceAddress, rdma: &str, named: &[String]) -> PortFiles {
    let errors = error_files::read(sysfs, &vec![(address, rdma.to_owned())], named);
    let metrics = counters::read(sysfs, rdma).into_iter().map(|port| {
        let counters = port.counters.into_iter();
        counters.map(|it| (it.name, it.value)).collect()
    });
    PortFiles {
        states: ports::untold(sysfs),
        errors: errors.iter().map(|it| (it.value, it.maximum)).collect(),
        metrics: metrics.collect(),
    }
}
