// SPDX-License-Identifier: Apache-2.0
//! The error codes of CNI (specification, section 5, "Error").

use crate::{ConfError, EnvironmentError};
use conf_reader::wrong::Kind;

/// The plugin does not support the `cniVersion`, or this version of the specification lacks the verb.
pub const INCOMPATIBLE_VERSION: u32 = 1;
/// The plugin does not support a field's value.
pub const UNSUPPORTED_FIELD: u32 = 2;
/// A `CNI_*` variable is missing or invalid.
pub const ENVIRONMENT: u32 = 4;
/// Reading or writing failed.
pub const IO: u32 = 5;
/// Standard input is not a JSON object.
pub const UNDECODABLE: u32 = 6;
/// The network configuration is invalid.
pub const CONFIGURATION: u32 = 7;
/// The failure is temporary. The runtime should try again.
pub const TRY_LATER: u32 = 11;
/// Result of STATUS: ADD would fail.
pub const NOT_AVAILABLE: u32 = 50;
/// Result of STATUS: ADD would fail, and running pods may have limited connectivity.
pub const LIMITED: u32 = 51;
/// CHECK found a difference, or the plugin has a defect. The reference plugins use this code too.
pub const INTERNAL: u32 = 999;

impl ConfError {
    /// Returns the CNI error code.
    pub fn code(&self) -> u32 {
        match self {
            Self::NotJson(_) => UNDECODABLE,
            Self::NoVersion | Self::Version(_) | Self::Verb { .. } => INCOMPATIBLE_VERSION,
            Self::Wrong(wrong) if wrong.kind == Kind::Unsupported => UNSUPPORTED_FIELD,
            Self::List | Self::Wrong(_) | Self::Missing { .. } => CONFIGURATION,
        }
    }
}

impl EnvironmentError {
    /// Returns the CNI error code.
    pub fn code(&self) -> u32 {
        ENVIRONMENT
    }
}
