// SPDX-License-Identifier: Apache-2.0
//! Dynamic resource allocation (DRA): Kubernetes allocates devices by claims, from slices that a driver publishes.
//!
//! | module | owns |
//! |---|---|
//! | [`pool`] | devices of a node's pool, with taints that show their health: pure |
//! | [`slices`] | ResourceSlices of the pool, and a plan of their changes: pure |
//! | [`claim`] | allocation of a claim in the API server: pure |
//! | [`parameters`] | parameters of the attachment of a claim's pod: pure |
//! | `metadata` | metadata of a claim's devices for programs in containers: pure |
//! | [`record`] | state of a prepared claim: pure |
//! | [`store`] | records in the state directory, written by the daemon and `rdma-cni` |
//! | [`status`] | status of a claim's devices, from its record: pure |
//! | [`cdi`] | CDI specification of a claim, from its record: pure |
//!
//! The daemon prepares a claim before the claim's first pod has a network. Device numbers may still change when ADD
//! attaches the network. The daemon therefore first writes only the record. The CDI specification follows when the
//! numbers are final: for a pod with rails, ADD writes it. A runtime creates no container without the specification, so
//! no container starts without its rails.
//!
//! This crate reads and writes files, but accesses neither the API server, nor kubelet, nor the kernel. Its callers do.

pub mod cdi;
pub mod claim;
mod metadata;
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
