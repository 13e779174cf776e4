// SPDX-License-Identifier: Apache-2.0
//! The errors of SMC-R.

use crate::decision::{Blocker, SkipReason};
use attachments::store::StoreError;
use rdma_netns::{ObserveError, OpError, Unstable};

/// The reason why a pod cannot have SMC-R.
#[derive(Debug, thiserror::Error)]
pub enum SmcError {
    /// The kernel or the pod lacks a prerequisite.
    #[error("SMC-R: {0}")]
    Blocker(#[from] Blocker),
    /// SMC-R cannot carry an interface.
    #[error(
        "SMC-R: {name}: {reason} (smcr \"on\" requires SMC-R for every interface with IPv4; with \
         \"annotation\" the pod starts, and such an interface stays TCP)"
    )]
    Without {
        /// Interface in the pod, or RDMA device.
        name: String,
        /// Reason.
        reason: SkipReason,
    },
    /// The pod has no interface for SMC-R.
    #[error("SMC-R: {0}")]
    Nothing(String),
    /// SMC's state cannot be read.
    #[error("SMC-R: {0}")]
    Observe(#[from] ObserveError),
    /// The kernel refused a change.
    #[error("SMC-R: {0}")]
    Op(#[from] OpError),
    /// The state still differs after all changes.
    #[error("SMC-R: {0}")]
    Unstable(#[from] Unstable),
}

/// Setting SMC-R up, or checking it, failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pod cannot have SMC-R.
    #[error(transparent)]
    Smc(#[from] SmcError),
    /// The records cannot be read or written.
    #[error(transparent)]
    State(#[from] StoreError),
    /// The kernel's state cannot be read.
    #[error(transparent)]
    Observe(#[from] ObserveError),
}
