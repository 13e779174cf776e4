// SPDX-License-Identifier: Apache-2.0
//! Nodes with eRDMA NICs: the daemon discovers the NICs, and sets them up by the crate `erdma`.
//!
//! | module | owns |
//! |---|---|
//! | `discovery` | discovery and selection of the NICs |
//! | `reconciler` | the leader's task that brings NICs up and changes the driver's mode |
//! | `report`, `table` | the state of the NICs, for the daemon and for users |

pub mod discovery;
pub mod reconciler;
mod report;
mod table;

pub use discovery::{Discovery, discover};
pub use report::{Report, Side};
pub use table::table;
