// SPDX-License-Identifier: Apache-2.0
//! The crate on the real kernel: each test makes a node and a pod of two new network
//! namespaces, with veth pairs for NICs. RDMA devices are tried in the lab.

mod addresses;
mod announce;
mod children;
mod examples;
mod inside;
mod monitor;
mod moves;
mod observe;
mod probe;
mod routes;
mod rules;
mod settings;
mod uplinks;
mod world;
