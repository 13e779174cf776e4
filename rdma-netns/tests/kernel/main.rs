// SPDX-License-Identifier: Apache-2.0
//! Tests the crate on the real kernel. Each test makes a node and a pod of two new network namespaces, with veth pairs
//! as NICs. `suite` runs rules that also apply to the fake kernel. All other tests are only for the real kernel. Tests
//! of RDMA devices run in the lab (`tests/rdma`).

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
