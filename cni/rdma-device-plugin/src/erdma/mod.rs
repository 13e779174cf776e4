// SPDX-License-Identifier: Apache-2.0
//! Nodes with eRDMA NICs: which there are, and when something is done with them. What is done is the
//! crate `erdma`'s.
//!
//! | module | owns |
//! |---|---|
//! | `discovery` | which NICs there are, and which of them are used |
//! | `reconciler` | when NICs are brought up and the driver is changed, in a running daemon |
//! | `report`, `table` | how it stands, for the daemon and for people |

pub mod discovery;
pub mod reconciler;
mod report;
mod table;

pub use discovery::{Discovery, discover};
pub use report::{Report, Side};
pub use table::table;
