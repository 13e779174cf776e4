// SPDX-License-Identifier: Apache-2.0
//! SMC state for planning a pod's set-up.

use super::PnetEntry;
use serde::{Deserialize, Serialize};

/// SMC's settings, as the host and a pod see them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SmcState {
    /// The host's pnet table: its netdevs, and the RDMA ports of the whole node.
    #[serde(default)]
    pub host: Vec<PnetEntry>,
    /// The pod's pnet table, if the pod still lives: its netdevs.
    #[serde(default)]
    pub pod: Vec<PnetEntry>,
    /// User EIDs of the node, of which SMC-Rv2 needs at least one; without trailing blanks.
    #[serde(default)]
    pub ueids: Vec<String>,
    /// `net.smc.tcp2smc` of the pod: true if TCP sockets are made SMC sockets. `None`: the kernel has no such setting;
    /// only some of Alibaba Cloud's have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp2smc: Option<bool>,
    /// `net.smc.smcr_max_links_per_lgr` of the pod: the number of links that a link group gets. `None`: the kernel
    /// (before Linux 6.8) has no such setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_links: Option<u8>,
    /// `compat_mode` of the erdma driver, in which it has no SMC-R. `None`: the driver is not loaded, or has no such
    /// parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erdma_compat: Option<bool>,
    /// RDMA devices that SMC uses, in any namespace. `None`: the kernel (before Linux 5.11) does not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<Vec<String>>,
    /// SMC connections that a process or a listener holds open, of the pod, or without a pod of the host. Until they
    /// are closed, the kernel does not let a move of their RDMA devices end (`smc_smcr_terminate_all()`,
    /// `net/smc/smc_core.c`).
    #[serde(default)]
    pub held: Vec<HeldConnections>,
}

/// Connections over an RDMA device whose sockets are open in a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldConnections {
    /// The RDMA device.
    pub device: String,
    /// Number of connections.
    pub count: u32,
}
