// SPDX-License-Identifier: Apache-2.0
//! `environment` of a resource: the programs for which containers get environment variables.

use serde::Deserialize;

/// Programs that read a container's environment. `docs/device-plugin.md` describes the variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reader {
    /// Programs that read the pod's rails from `RDMA_RAILS`.
    Rails,
    /// NCCL, and RCCL, which reads NCCL's variables.
    Nccl,
    /// UCX.
    Ucx,
    /// NVSHMEM.
    Nvshmem,
}
