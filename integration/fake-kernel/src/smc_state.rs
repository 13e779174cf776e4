// SPDX-License-Identifier: Apache-2.0
//! SMC of a kernel and of a namespace.

use rdma_netns::smc::{HeldConnections, PnetEntry};

/// SMC in a kernel that has it.
#[derive(Clone, Debug, Default)]
pub struct Smc {
    /// True if the kernel has `net.smc.tcp2smc`, like some of Alibaba Cloud's kernels.
    pub has_tcp2smc: bool,
    /// True if the kernel is too old for `net.smc.smcr_max_links_per_lgr`.
    pub lacks_max_links: bool,
    /// Parameter `compat_mode` of the erdma driver. `None`: the driver is not loaded.
    pub erdma_compat: Option<bool>,
    /// RDMA devices that the kernel's SMC ignores, as mainline ignores iWARP devices (`smc_ib_add_dev()`).
    pub ignores: Vec<String>,
    /// The user EIDs of the node.
    pub ueids: Vec<String>,
}

/// SMC settings of a namespace. They end with the namespace (`smc_pnet_net_exit()`).
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) pnet: Vec<PnetEntry>,
    pub(crate) tcp2smc: bool,
    /// `None`: the kernel's default.
    pub(crate) max_links: Option<u8>,
    pub(crate) held: Vec<HeldConnections>,
}
