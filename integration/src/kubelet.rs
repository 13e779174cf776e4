// SPDX-License-Identifier: Apache-2.0
//! A stand-in for kubelet: real gRPC over real Unix sockets. A test sets the stand-in's answers.
//!
//! | module | owns |
//! |---|---|
//! | [`device_manager`] | the stand-in's life (start, stop, kill, restart), and waits for its state |
//! | [`plugins`] | registration, a client and a stream for each plugin |
//! | [`allocation`] | a container's request, and its allocation |
//! | `allocating` | allocation to a container, by the rules of kubelet's device manager |
//! | [`claims`] | a DRA driver, found by its socket, and the claims that the driver prepares |
//! | [`node`] | the stand-in with a daemon on this machine's own devices |
//! | [`pod_resources`] | kubelet's pod-resources API, which the chain and the daemon call |

mod allocating;
pub mod allocation;
pub mod claims;
pub mod device_manager;
pub mod node;
pub mod plugins;
pub mod pod_resources;

pub use allocation::{Allocation, AllocationRequest};
pub use claims::ClaimManager;
pub use device_manager::DeviceManager;
pub use plugins::{Generation, Manner, Registered, Resource};
