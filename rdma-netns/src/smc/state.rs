// SPDX-License-Identifier: Apache-2.0
//! SMC state, the input of plans for a pod's SMC set-up.

use super::PnetEntry;
use serde::{Deserialize, Serialize};

/// SMC's settings, as the host and a pod see them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SmcState {
    /// Entries of the host's pnet table: the host's netdevs, and the RDMA ports of the whole node.
    pub host: Vec<PnetEntry>,
    /// Entries of the pod's pnet table, which are entries of netdevs. Empty without a pod.
    pub pod: Vec<PnetEntry>,
    /// User EIDs of the node, without trailing blanks. SMC-Rv2 needs at least one.
    pub ueids: Vec<String>,
    /// Setting `net.smc.tcp2smc` of the pod: true if the kernel makes TCP sockets SMC sockets. `None`: the kernel has
    /// no such setting. Only some kernels of Alibaba Cloud have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp2smc: Option<bool>,
    /// Setting `net.smc.smcr_max_links_per_lgr` of the pod: the largest number of links of a link group. `None`: the
    /// kernel (before Linux 6.8) has no such setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_links: Option<u8>,
    /// Parameter `compat_mode` of the erdma driver. A driver in compat mode has no SMC-R. `None`: the driver is not
    /// loaded, or has no such parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub erdma_compat: Option<bool>,
    /// RDMA devices that SMC uses, in any namespace. `None`: the kernel (before Linux 5.11) does not report them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<Vec<String>>,
    /// SMC connections that are open in a process, or that wait at a listener: those of the pod, or without a pod
    /// those of the host. While they are open, the kernel does not finish a move of their RDMA devices
    /// (`smc_smcr_terminate_all()`, `net/smc/smc_core.c`).
    pub held: Vec<HeldConnections>,
}

/// Connections over an RDMA device whose sockets are open in a process, or wait at a listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldConnections {
    /// The RDMA device.
    pub device: String,
    /// Number of connections.
    pub count: u32,
}
