// SPDX-License-Identifier: Apache-2.0
//! CNI's configuration directory (`/etc/cni/net.d`): which file a runtime uses, and `rdma-cni`'s entry in this file.
//!
//! | module | owns |
//! |---|---|
//! | [`directory`] | the files of the directory, read once |
//! | [`pick`](mod@pick) | the file that a runtime uses, and the reasons against the other files |
//! | [`list`] | one list: its plugins, and its text with our entry added or removed |
//! | [`single`] | a configuration of one plugin, and the list that is made from it |
//! | [`entry`] | the configuration of our plugin |
//! | [`fields`] | the fields that a user can write in this configuration |
//! | [`placement`] | the choice between the list and the network's own directory for our entry |
//! | [`call`] | the file from which the runtime calls our plugin |
//! | [`programs`] | the programs that a configuration names, and the missing ones |
//! | [`change`] | changes of the directory, and the obstacles to them |
//! | [`plan`] | the changes that make the runtime call our plugin, or stop calling it |
//!
//! Only [`directory`] accesses the disk, and only for reading. Edits preserve all bytes of a file outside our entry.

pub mod call;
pub mod change;
pub mod directory;
pub mod entry;
pub mod fields;
pub mod list;
mod members;
pub mod pick;
pub mod placement;
pub mod plan;
pub mod programs;
pub mod single;
mod style;

pub use call::{Called, called};
pub use change::{Change, Obstacle};
pub use directory::{Directory, File};
pub use entry::Entry;
pub use list::{Broken, List, Position};
pub use pick::{Choice, Pick, Picked, Runtime, follow, pick};
pub use placement::{Placed, Placement};
pub use plan::Plan;
pub use programs::Programs;

/// The `type` values of our plugin: its own name, and `rdma`, the name of the plugin that it can replace.
pub const TYPES: [&str; 2] = [TYPE, "rdma"];

/// Type of the IPAM plugin that `install` copies together with our plugin.
const IPAM: &str = "rdma-ipam";

/// The `type` of the entries that this project adds.
pub const TYPE: &str = "rdma-cni";
