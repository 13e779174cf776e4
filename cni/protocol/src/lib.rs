// SPDX-License-Identifier: Apache-2.0
//! The CNI protocol: environment and standard input in, one JSON object out. Nothing in here
//! knows of devices or addresses; the plugins of this project have it in common.
//!
//! | module | owns |
//! |---|---|
//! | [`plugin`] | one run of a plugin: arguments, input, the answer, panics and exit code |
//! | [`environment`] | the `CNI_*` variables |
//! | [`conf`] | the network configuration: what every plugin reads of it |
//! | [`mistakes`] | which verbs pass over a wrong value |
//! | [`result`] | the answer to ADD, in the shape of the configuration's version |
//! | [`version`], [`code`] | versions and error codes of the specification |
//! | [`lock`] | locks on files, waited for with an end |
//! | [`state_file`] | files of the state directories, opened whatever is in their place |
//! | [`room`] | whether files can be written, for STATUS, which writes none |
//! | [`run`] | one run of another plugin, with an end |
//! | [`logging`] | standard error, and a file |
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
