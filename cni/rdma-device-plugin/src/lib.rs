// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin`: tells kubelet which RDMA devices a node has, and gives them to
//! containers.
//!
//! ```text
//! file → conf::parse → Conf                        pure; bad input stops here
//! Linux::inventory   → Inventory                   read-only
//! (Conf, Inventory, unhealthy) → offer::offers     pure: what is advertised, and what each id
//!                                                  stands for
//! Offer + ids        → offer::answer, prefer       pure: what a container gets
//! SIGHUP, the file, netlink → node::Signal → Daemon → a new Node → files for the chain
//!                                                  → kubelet::Plugin, one for each resource
//! ```
//! Everything that can change while the daemon runs is in one [`node::Node`], made anew at each
//! change and never changed in place.

pub mod api;
pub mod chain;
pub mod check;
pub mod cli;
pub mod conf;
pub mod config_file;
pub mod daemon;
pub mod device_info;
pub mod dra;
pub mod erdma;
pub mod hardware;
pub mod health;
pub mod history;
pub mod install;
pub mod ipv6_prerequisite;
pub mod kubelet;
pub mod leader;
pub mod metrics;
pub mod node;
pub mod node_features;
pub mod notices;
pub mod offer;
pub mod offline;
pub mod peers;
pub mod privilege;
pub mod probes;
pub mod publish;
pub mod refused;
pub mod release;
pub mod report;
mod said;
pub mod signals;
pub mod watch;
