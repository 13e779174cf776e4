// SPDX-License-Identifier: Apache-2.0
//! Errors of SMC-R.

use crate::decision::SkipReason;
use attachments::store::StoreError;
use rdma_netns::{ObserveError, OpError, Unstable};

/// Reason why a pod cannot have SMC-R.
#[derive(Debug, thiserror::Error)]
pub enum SmcError {
    /// A prerequisite is missing in the kernel or in the pod.
    #[error("SMC-R: {0}")]
    Prerequisite(#[from] SkipReason),
    /// SMC-R cannot carry the connections of an interface.
    #[error(
        "SMC-R: {name}: {reason} (smcr \"on\" requires SMC-R for every interface with IPv4; with \
         \"annotation\" the pod starts, and uses TCP where SMC-R is not possible)"
    )]
    Without {
        /// Name of the interface in the pod, or of the RDMA device.
        name: String,
        /// Reason.
        reason: SkipReason,
    },
    /// No interface of the pod has SMC-R. The text is the reason.
    #[error("SMC-R: {0}")]
    Nothing(String),
    /// SMC's state cannot be read.
    #[error("SMC-R: {0}")]
    Observe(#[from] ObserveError),
    /// The kernel refused a change.
    #[error("SMC-R: {0}")]
    Op(#[from] OpError),
    /// The state differed from the plan after all attempts.
    #[error("SMC-R: {0}")]
    Unstable(#[from] Unstable),
}

/// Error while SMC-R is set up, checked or removed.
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
