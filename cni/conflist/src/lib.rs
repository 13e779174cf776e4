// SPDX-License-Identifier: Apache-2.0
//! CNI's configuration directory (`/etc/cni/net.d`): which file a runtime uses, and this
//! project's plugin in it.
//!
//! | module | owns |
//! |---|---|
//! | [`directory`] | the directory's files, read once |
//! | [`pick`](mod@pick) | which of them a runtime uses, and why not the others |
//! | [`list`] | one list: what is in it, and the text with our plugin put in or taken out |
//! | [`single`] | a configuration of one plugin, and the list that it is turned into |
//! | [`entry`] | our plugin's own configuration |
//! | [`placement`] | whether our plugin's entry is in the list, or in the network's own directory |
//! | [`programs`] | the programs that a configuration names, and whether they are there |
//! | [`plan`] | what has to be written or removed for the runtime to call us, or not to any more |
//!
//! Only [`directory`] touches the disk, and it only reads. Texts are edited as texts: what is not
//! ours keeps every byte.

pub mod directory;
pub mod entry;
pub mod list;
mod members;
pub mod pick;
pub mod placement;
pub mod plan;
pub mod programs;
pub mod single;
mod style;

pub use directory::{Directory, File};
pub use entry::Entry;
pub use list::{Broken, List, Position};
pub use pick::{Choice, Pick, Picked, Runtime, follow, pick};
pub use placement::Placement;
pub use plan::{Change, Obstacle, Plan};
pub use programs::Programs;

/// The types by which our plugin is called: its own name, and the one of the plugin that it can
/// stand in for.
pub const TYPES: [&str; 2] = [TYPE, "rdma"];

/// The IPAM plugin that is installed with ours.
const IPAM: &str = "rdma-ipam";

/// The type that is put into a list.
pub const TYPE: &str = "rdma-cni";
