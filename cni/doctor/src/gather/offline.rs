// SPDX-License-Identifier: Apache-2.0
//! Parsers of single files. They need no node: `integration/fuzz` runs them on hostile input.

pub use super::{
    records::lease,
    services::limit,
    system::{module, option, policy, unit},
};
