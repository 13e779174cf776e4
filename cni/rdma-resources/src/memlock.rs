// SPDX-License-Identifier: Apache-2.0
//! Limit of locked memory of a container's processes, which the runtime's hook raises ([`Hook`](crate::hook::Hook)).

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;

/// A limit of locked memory. The order is by size: a larger limit is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum Memlock {
    /// Bytes that a process may lock.
    Bytes(u64),
    /// No limit.
    Unlimited,
}

const UNLIMITED: &str = "unlimited";

impl Memlock {
    /// Returns the limit in bytes. Returns `None` for no limit.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Unlimited => None,
        }
    }

    /// Parses a limit in the form in which `Display` prints it. Returns `None` if `limit` has another form.
    pub(crate) fn of_text(limit: &str) -> Option<Self> {
        let bytes = limit.parse::<u64>().map(Value::from);
        Self::try_from(bytes.unwrap_or_else(|_| limit.into())).ok()
    }
}

impl fmt::Display for Memlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Unlimited => f.write_str(UNLIMITED),
        }
    }
}

/// Parses `unlimited` or a number of bytes.
impl TryFrom<Value> for Memlock {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match value.as_u64() {
            Some(bytes @ 1..) => Ok(Self::Bytes(bytes)),
            None if value == UNLIMITED => Ok(Self::Unlimited),
            _ => Err(format!(
                "must be unlimited, or a number of bytes from 1, and is {value}"
            )),
        }
    }
}

impl From<Memlock> for Value {
    fn from(memlock: Memlock) -> Self {
        memlock.bytes().map_or_else(|| UNLIMITED.into(), Self::from)
    }
}
