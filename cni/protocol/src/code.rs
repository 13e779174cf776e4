// SPDX-License-Identifier: Apache-2.0
//! CNI's own error codes (specification, section 5, "Error").

use crate::{ConfError, EnvironmentError};

/// `cniVersion` is not supported, or has no such verb.
pub const INCOMPATIBLE_VERSION: u32 = 1;
/// A value that this plugin does not do.
pub const UNSUPPORTED_FIELD: u32 = 2;
/// The `CNI_*` variables.
pub const ENVIRONMENT: u32 = 4;
/// Reading and writing.
pub const IO: u32 = 5;
/// Standard input is no JSON object.
pub const UNDECODABLE: u32 = 6;
/// The network configuration.
pub const CONFIGURATION: u32 = 7;
/// A passing state: the runtime should try again.
pub const TRY_LATER: u32 = 11;
/// STATUS: ADD cannot work.
pub const NOT_AVAILABLE: u32 = 50;
/// STATUS: ADD cannot work, and pods that run suffer too.
pub const LIMITED: u32 = 51;
/// What the reference plugins answer to a CHECK that found something, and to a defect.
pub const INTERNAL: u32 = 999;

impl ConfError {
    /// Its CNI error code.
    pub fn code(&self) -> u32 {
        match self {
            Self::NotJson(_) => UNDECODABLE,
            Self::NoVersion | Self::Version(_) | Self::Verb { .. } => INCOMPATIBLE_VERSION,
            Self::Unsupported { .. } => UNSUPPORTED_FIELD,
            Self::List | Self::Value { .. } | Self::Missing { .. } => CONFIGURATION,
        }
    }
}

impl EnvironmentError {
    /// Its CNI error code.
    pub fn code(&self) -> u32 {
        ENVIRONMENT
    }
}
