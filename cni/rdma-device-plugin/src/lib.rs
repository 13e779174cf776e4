// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin`: advertises a node's RDMA devices to kubelet, and provides them to containers.
//!
//! ```text
//! file → daemon_conf::Conf                         pure; bad input stops here
//! Linux::inventory   → Inventory                   read-only
//! (Conf, Inventory, unhealthy) → offer::offers     pure: advertised devices, and the devices of
//!                                                  each id
//! Offer + ids        → offer::answer, prefer       pure: devices of a container
//! SIGHUP, the file, netlink → Signal → Daemon → a new Node → files for the chain
//!                                                  → kubelet::Plugin, one for each resource
//! ```
//! A [`Node`](node_state::node::Node) contains configuration, hardware, health and offers at one time. Each change makes
//! a new `Node`. A `Node` is never changed in place.

pub mod api;
pub mod chain;
pub mod check;
pub mod cli;
pub mod daemon;
pub mod device_info;
pub mod dra;
pub mod fabric;
pub mod history;
pub mod install;
pub mod kubectl;
pub mod kubelet;
pub mod leader;
pub mod logging;
pub mod metrics;
pub mod node_features;
pub mod offline;
pub mod peers;
pub mod privilege;
pub mod probes;
pub mod publish;
pub mod refused;
pub mod release;
pub mod report;
mod retry;
pub mod signals;

/// Returns a function that converts an I/O error to the message `cannot {what}: {error}`.
pub fn cannot(what: &str) -> impl Fn(std::io::Error) -> anyhow::Error {
    move |error| anyhow::anyhow!("cannot {what}: {error}")
}
