// SPDX-License-Identifier: Apache-2.0
//! The daemon's interface to kubelet. Each resource is a device plugin with its own socket, gRPC server and
//! registration.
//!
//! | module | owns |
//! |---|---|
//! | [`socket`] | a socket in one of kubelet's directories, and its state |
//! | [`service`] | device-plugin service of a resource |
//! | `holder` | the container that has allocated devices |
//! | `own_accelerators` | accelerators of the container that gets NICs |
//! | `chain_check` | check that the CNI list of the pod's network has `rdma-cni` |
//! | `answered` | answers to kubelet about starts of containers |
//! | `environment` | files with a container's rails, limits and variables for libraries |
//! | [`streams`] | ListAndWatch streams of a resource |
//! | [`plugin`] | task of a resource: socket, server, registration |
//! | `plugin_context` | common context of all plugins and the DRA driver |
//! | [`register`] | one registration |
//! | [`takeover`] | replacement of another daemon's plugin |
//!
//! A plugin keeps running when its offer changes. Its newest stream observes the [`Node`](node_state::node::Node), and
//! sends each device list that differs from the last one.

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

pub(crate) use holder::PodContainer;
pub use plugin::Plugin;
pub use plugin_context::PluginContext;
