// SPDX-License-Identifier: Apache-2.0
//! The crate on the real kernel: each test makes a node and a pod of two new network
//! namespaces, with veth pairs for NICs. RDMA devices are tried in the lab. What the fake kernel
//! does as well is in `suite`; the other tests are of what only the real one has.

mod addresses;
mod announce;
mod children;
mod examples;
mod inside;
mod monitor;
mod netlink;
mod observe;
mod pods;
mod probe;
mod routes;
mod rules;
mod settings;
mod suite;
mod uplinks;
mod world;
