// SPDX-License-Identifier: Apache-2.0
//! Why a pod cannot have SMC-R.

use crate::decision::{Blocker, SkipReason};
use attachments::store::StoreError;
use rdma_netns::{ObserveError, OpError, Unstable};

/// A pod cannot have SMC-R.
#[derive(Debug, thiserror::Error)]
pub enum SmcError {
    /// Something of it is not there.
    #[error("SMC-R: {0}")]
    Blocker(#[from] Blocker),
    /// An interface would not be carried.
    #[error(
        "SMC-R: {name}: {reason} (smcr \"on\" wants SMC-R for every interface that has IPv4; with \
         \"annotation\" a pod starts, and what cannot have it stays TCP)"
    )]
    Without {
        /// The interface in the pod, or the RDMA device.
        name: String,
        /// Why.
        reason: SkipReason,
    },
    /// There is nothing to be carried.
    #[error("SMC-R: {0}")]
    Nothing(String),
    /// SMC's state cannot be read.
    #[error("SMC-R: {0}")]
    Observe(#[from] ObserveError),
    /// The kernel refused a change.
    #[error("SMC-R: {0}")]
    Op(#[from] OpError),
    /// All changes were made, and yet something differs.
    #[error("SMC-R: {0}")]
    Unstable(#[from] Unstable),
}

/// Setting it up, or a look at it, fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pod cannot have it.
    #[error(transparent)]
    Smc(#[from] SmcError),
    /// The records.
    #[error(transparent)]
    State(#[from] StoreError),
    /// The kernel's state.
    #[error(transparent)]
    Observe(#[from] ObserveError),
}
