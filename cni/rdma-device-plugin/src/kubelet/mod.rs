// SPDX-License-Identifier: Apache-2.0
//! Kubelet's side of the daemon: each resource is a plugin of its own, with a socket, a gRPC
//! server and a registration.
//!
//! | module | owns |
//! |---|---|
//! | [`socket`] | a socket in one of kubelet's directories, and whether it still is there |
//! | [`service`] | the device-plugin service of a resource |
//! | `holder` | whose the devices of a container are |
//! | `own_accelerators` | which accelerators a container has that is allocated NICs |
//! | `chain_check` | whether that pod has its network by the chain |
//! | `told` | what kubelet was told of a container's start |
//! | `environment` | what a container is told of that network |
//! | `libraries` | which RDMA devices and GIDs it has |
//! | [`streams`] | its ListAndWatch streams |
//! | [`plugin`] | its task: socket, server, registration |
//! | `plugin_context` | what all plugins have in common |
//! | [`register`] | one registration |
//! | [`takeover`] | another daemon's plugin is there, and ends |
//!
//! A plugin outlives every change of what it advertises: its streams look at the
//! [`Node`](crate::node::Node) and send a list when theirs differs.

pub(crate) mod chain_check;
mod environment;
mod holder;
mod libraries;
mod own_accelerators;
pub mod plugin;
mod plugin_context;
pub mod register;
pub mod service;
pub mod socket;
pub mod streams;
pub mod takeover;
mod told;

pub use plugin::Plugin;
pub use plugin_context::PluginContext;
