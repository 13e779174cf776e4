// SPDX-License-Identifier: Apache-2.0
//! State of the node, as the daemon `rdma-device-plugin` observes it. The daemon's tasks send a [`node::Signal`] after
//! each change, and the daemon makes a new [`node::Node`] from configuration, hardware, health and eRDMA NICs.
//!
//! The crate reads the kernel and the node's files. It changes only eRDMA NICs and their driver. For them it also queries
//! the instance's metadata service and, before a reload of the driver, kubelet.

pub mod config_file;
pub mod erdma;
pub mod hardware;
pub mod health;
pub mod ipv6_prerequisite;
pub mod limits;
pub mod lldp;
pub mod log_once;
pub mod node;
pub mod notices;
mod sources;
pub mod watch;
