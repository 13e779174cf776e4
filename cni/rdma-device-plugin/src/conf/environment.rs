// SPDX-License-Identifier: Apache-2.0
//! `environment` of a resource: for whom its containers' environment is set up.

use serde::Deserialize;

/// Who reads a container's environment. What each finds there is in `docs/device-plugin.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reader {
    /// Programs that look for the pod's rails in `RDMA_RAILS`.
    Rails,
    /// NCCL, and RCCL, which has its variables.
    Nccl,
    /// UCX.
    Ucx,
    /// NVSHMEM.
    Nvshmem,
}
