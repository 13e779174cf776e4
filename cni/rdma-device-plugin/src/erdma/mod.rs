// SPDX-License-Identifier: Apache-2.0
//! Nodes with eRDMA NICs: discovery of the NICs, and the times of their set-up. The crate `erdma` does the set-up.
//!
//! | module | owns |
//! |---|---|
//! | `discovery` | discovery and selection of the NICs |
//! | `reconciler` | times at which a running daemon brings NICs up and changes the driver |
//! | `report`, `table` | the state of the NICs, for the daemon and for users |

pub mod discovery;
pub mod reconciler;
mod report;
mod table;

pub use discovery::{Discovery, discover};
pub use report::{Report, Side};
pub use table::table;
