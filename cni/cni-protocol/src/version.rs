// SPDX-License-Identifier: Apache-2.0
//! The versions of the CNI specification that the plugins support.

use std::fmt;

/// A supported version of the CNI specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpecVersion {
    /// 0.3.0: has `ips[].version`, and lacks CHECK.
    V0_3_0,
    /// 0.3.1: has the same formats as 0.3.0.
    V0_3_1,
    /// 0.4.0: adds CHECK.
    V0_4_0,
    /// 1.0.0: removes `ips[].version`.
    V1_0_0,
    /// 1.1.0: adds GC, STATUS, and fields of interfaces and routes.
    V1_1_0,
}

/// All supported versions, oldest first.
pub const SUPPORTED: [SpecVersion; 5] = [
    SpecVersion::V0_3_0,
    SpecVersion::V0_3_1,
    SpecVersion::V0_4_0,
    SpecVersion::V1_0_0,
    SpecVersion::V1_1_0,
];

impl SpecVersion {
    /// Returns the text of the version, as in `cniVersion`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// Returns the supported version with the text `text`. Returns `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        SUPPORTED
            .into_iter()
            .find(|version| version.as_str() == text)
    }
}

impl fmt::Display for SpecVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
