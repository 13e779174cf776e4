// SPDX-License-Identifier: Apache-2.0
//! A kubelet stand-in: real gRPC over real Unix sockets, which answers, or does not, as told.
//!
//! | module | owns |
//! |---|---|
//! | [`device_manager`] | its life: start, stop, kill, restart; what it knows, waited for |
//! | [`plugins`] | registration, a client and a stream for each plugin |
//! | [`allocation`] | what a container is allocated, as kubelet's device manager does it |
//! | [`claims`] | a driver found by its socket, and claims that it prepares |
//! | [`node`] | with it the daemon, on this machine's own devices |
//! | [`pod_resources`] | what the chain and the daemon ask: which pod has what |

pub mod allocation;
pub mod claims;
pub mod device_manager;
pub mod node;
pub mod plugins;
pub mod pod_resources;

pub use allocation::{Allocation, Wish};
pub use claims::ClaimManager;
pub use device_manager::DeviceManager;
pub use plugins::{Generation, Manner, Registered, Resource};
