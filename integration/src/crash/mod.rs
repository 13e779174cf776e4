// SPDX-License-Identifier: Apache-2.0
//! Stories: sequences of calls that a test runs many times, each time with another fault. At one point
//! ([`crate::tracer`]) the program is killed, or the system call there fails. After each fault, the story's next calls
//! must restore the state byte for byte.
//!
//! | module | stories |
//! |---|---|
//! | [`attachment`] | ADD, DEL and GC of `rdma-cni` |
//! | [`twice`] | two verbs, both killed; or one verb that meets an error, and then is killed or meets another error |
//! | [`lease`] | ADD, DEL and GC of `rdma-ipam` alone |
//! | [`program`] | `install` and `uninstall` of `rdma-device-plugin` |
//! | [`power_loss`] | stories of the other modules, with a loss of power at each sync and at the end |
//! | [`daemon`] | the files that `rdma-device-plugin` writes while it runs |
//! | `ended` | `uninstall` on a node with a pod that has ended |
//! | `story` | none: a story, and the end of its program |
//! | `sweep` | none: it finds the points, and selects those to try |

pub mod attachment;
pub mod daemon;
mod ended;
pub mod lease;
pub mod power_loss;
pub mod program;
mod story;
mod sweep;
pub mod twice;

pub use ended::Ended;
pub use story::{End, Story};
pub use sweep::{Extent, Tally, at, at_syncs, kills_and_errors, sweep};
