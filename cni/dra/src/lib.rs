// SPDX-License-Identifier: Apache-2.0
//! Dynamic resource allocation (DRA): Kubernetes allocates devices by claims, out of slices that a driver
//! publishes.
//!
//! | module | owns |
//! |---|---|
//! | [`pool`] | the devices of a node's pool: pure, of its resources and their health, which taints them |
//! | [`slices`] | the ResourceSlices that say so, and what has to be written to get there: pure |
//! | [`claim`] | what a claim was allocated, as the API server tells it: pure |
//! | [`parameters`] | what it says of how its pod is attached: pure |
//! | [`record`] | what a claim was prepared with, and what became of that: pure |
//! | [`store`] | the records in the state directory: the daemon's and `rdma-cni`'s |
//! | [`status`] | what its status says of its devices: pure, of its record |
//! | [`cdi`] | the CDI specification of a claim: pure, of its record |
//!
//! A claim is prepared before its first pod has a network, and the network may give devices other numbers. So
//! the record comes first; the CDI specification is written when the numbers are final, which for a pod with rails is
//! at its ADD. Without the specification no runtime makes a container: none starts without its rails.
//!
//! The API server, kubelet and the kernel are the callers'.

pub mod cdi;
pub mod claim;
pub mod parameters;
pub mod pool;
pub mod record;
pub mod slices;
pub mod status;
pub mod store;

pub use claim::{Claim, ClaimError, ClaimName};
pub use parameters::{AttachmentParameters, Parameters};
pub use pool::{Nic, PoolDevice, Resource};
pub use record::{Prepared, Record};
pub use store::Claims;
