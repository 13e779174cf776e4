// SPDX-License-Identifier: Apache-2.0
//! The CNI protocol: a plugin reads its environment and standard input, and prints one JSON object. All plugins of this
//! project use this crate. It has no code for devices or addresses.
//!
//! | module | owns |
//! |---|---|
//! | [`plugin`] | one run of a plugin: arguments, input, result, panics and exit code |
//! | [`environment`] | the `CNI_*` variables |
//! | [`conf`] | the fields of the network configuration that every plugin reads |
//! | [`mistakes`] | the verbs that ignore a wrong value |
//! | [`result`] | the result of ADD, in the format of the configuration's version |
//! | [`version`], [`code`] | versions and error codes of the specification |
//! | [`lock`] | file locks |
//! | [`state_file`] | files of the state directories, opened safely even if another kind of file is at their path |
//! | [`room`] | the check of STATUS that a directory is writable |
//! | [`run`] | one run of another program, with a deadline |
//! | [`logging`] | the log on standard error, and in a file |
//! | [`memory`] | the allocator of a plugin's process |

pub mod code;
pub mod conf;
pub mod environment;
pub mod lock;
pub mod logging;
pub mod memory;
pub mod mistakes;
pub mod plugin;
pub mod result;
pub mod room;
pub mod run;
pub mod state_file;
pub mod version;

pub use conf::{ConfError, Network, ValidAttachment};
pub use environment::{Command, Environment, EnvironmentError, Target};
pub use mistakes::Mistakes;
pub use plugin::{Failure, Input, Plugin};
pub use version::SpecVersion;
