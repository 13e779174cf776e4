//! Why a pod cannot have SMC-R.

use crate::{
    apply::ApplyError,
    plan::smc::{Hindrance, Interface},
};
use rdma_netns::{ObserveError, OpError};

/// A pod cannot have SMC-R.
#[derive(Debug, thiserror::Error)]
pub enum SmcError {
    /// Something of it is not there.
    #[error("SMC-R: {0}")]
    Hindrance(#[from] Hindrance),
    /// An interface would not be carried.
    #[error("SMC-R: {name}: {reason}")]
    Without {
        /// The interface in the pod, or the RDMA device.
        name: String,
        /// Why.
        reason: Interface,
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
    /// An address has no GID.
    #[error("SMC-R: {0}")]
    Gid(Box<ApplyError>),
    /// All changes were made, and yet something differs.
    #[error("SMC-R: done, and yet undone again by somebody else: {0}")]
    Unstable(String),
}
