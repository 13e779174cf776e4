// SPDX-License-Identifier: Apache-2.0
//! The verbs. Each verb is a function of a [`Node`](crate::node::Node).

pub mod add;
pub mod addresses;
pub mod check;
pub mod del;
pub mod draft;
pub mod gc;
mod outlast;
pub mod plan;
pub mod recovery;
pub mod restoring;
mod spared;
pub mod status;
pub mod teardown;
