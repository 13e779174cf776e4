// SPDX-License-Identifier: Apache-2.0
//! The limit of locked memory of a container's processes. A CDI entry cannot set it, and has a hook of the runtime that
//! does: `rdma-cni oci-hook`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    fmt,
    path::{Path, PathBuf},
};

/// First argument by which `rdma-cni` is the hook.
pub const HOOK: &str = "oci-hook";

/// Start of the hook's argument with the limit.
const ARGUMENT: &str = "--memlock=";

/// A limit of locked memory. A larger one is greater.
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
    /// Returns the limit in bytes; `None`: there is none.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Unlimited => None,
        }
    }

    /// Reads the argument of the hook, as [`Hook::json`] writes it. `None`: it is another argument.
    pub fn of_argument(argument: &str) -> Option<Self> {
        let limit = argument.strip_prefix(ARGUMENT)?;
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

/// The hook of a container, with the limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// Path of `rdma-cni` on the node.
    program: PathBuf,
    memlock: Memlock,
}

impl Hook {
    /// Returns the hook by which `rdma-cni` in the directory `plugins` sets the limit.
    pub fn new(plugins: &Path, memlock: Memlock) -> Self {
        Self {
            program: plugins.join("rdma-cni"),
            memlock,
        }
    }

    /// Returns the hook in the form of CDI (`hooks` of `containerEdits`). The runtime calls it when the container's
    /// process exists and its program does not run yet (`createRuntime`, OCI runtime specification, `config.md`).
    pub fn json(&self) -> Value {
        json!({
            "hookName": "createRuntime",
            "path": self.program,
            "args": ["rdma-cni", HOOK, format!("{ARGUMENT}{}", self.memlock)],
        })
    }
}
