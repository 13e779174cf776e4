// SPDX-License-Identifier: Apache-2.0
//! The daemon's interface to kubelet: each resource is a plugin with its own socket, gRPC server and registration.
//!
//! | module | owns |
//! |---|---|
//! | [`socket`] | a socket in one of kubelet's directories, and its state |
//! | [`service`] | the device-plugin service of a resource |
//! | `holder` | the container of allocated devices |
//! | `own_accelerators` | accelerators of the container that gets NICs |
//! | `chain_check` | check that the chain made the pod's network |
//! | `answered` | answers to kubelet about starts of containers |
//! | `environment` | environment of a container for that network |
//! | `libraries` | RDMA devices and GIDs of the container |
//! | [`streams`] | its ListAndWatch streams |
//! | [`plugin`] | its task: socket, server, registration |
//! | `plugin_context` | common context of all plugins |
//! | [`register`] | one registration |
//! | [`takeover`] | replacement of another daemon's plugin |
//!
//! A plugin outlives all changes of its offer: its streams observe the [`Node`](crate::node::Node) and send a list when
//! it differs from the last one.

mod answered;
pub(crate) mod chain_check;
mod environment;
mod holder;
mod own_accelerators;
pub mod plugin;
mod plugin_context;
pub mod register;
pub mod service;
pub mod socket;
pub mod streams;
pub mod takeover;

pub use plugin::Plugin;
pub use plugin_context::PluginContext;
