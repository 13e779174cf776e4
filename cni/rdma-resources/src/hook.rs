// SPDX-License-Identifier: Apache-2.0
//! Limits of a container that CDI cannot set, and the runtime's hook that sets them: `rdma-cni oci-hook`.

use crate::Memlock;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// First argument with which the runtime runs `rdma-cni` as the hook.
pub const HOOK: &str = "oci-hook";

const MEMLOCK: &str = "--memlock=";
const HANDLES: &str = "--rdma-handles=";
const OBJECTS: &str = "--rdma-objects=";
const STATE_DIR: &str = "--state-dir=";

/// Limits of a container that the hook sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerLimits {
    /// Limit of locked memory. `None`: the runtime's limit stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memlock: Option<Memlock>,
    /// Limits of the kernel's rdma controller.
    #[serde(flatten)]
    pub rdma: RdmaLimits,
}

/// Limits of a pod's use of each RDMA device (`Documentation/admin-guide/cgroup-v2.rst`, RDMA).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaLimits {
    /// Maximum number of open contexts (`hca_handle`). `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handles: Option<u32>,
    /// Maximum total number of queue pairs, memory regions, completion queues and other objects (`hca_object`). `None`:
    /// no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<u32>,
}

impl RdmaLimits {
    /// Largest limit that the kernel accepts (`rdmacg_parse_limits()`, `kernel/cgroup/rdma.c`).
    pub const MOST: u32 = i32::MAX as u32;

    /// Returns true if neither contexts nor objects have a limit.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl ContainerLimits {
    /// Returns true if the hook has no limit to set.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Returns the limits of a container with two resources: the higher one of the limits of locked memory, and the
    /// lower one of the limits of RDMA devices.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        let lower = |one: Option<u32>, two: Option<u32>| one.into_iter().chain(two).min();
        Self {
            memlock: self.memlock.max(other.memlock),
            rdma: RdmaLimits {
                handles: lower(self.rdma.handles, other.rdma.handles),
                objects: lower(self.rdma.objects, other.rdma.objects),
            },
        }
    }

    fn arguments(self) -> impl Iterator<Item = String> {
        let memlock = self.memlock.map(|it| format!("{MEMLOCK}{it}"));
        let handles = self.rdma.handles.map(|it| format!("{HANDLES}{it}"));
        let objects = self.rdma.objects.map(|it| format!("{OBJECTS}{it}"));
        memlock.into_iter().chain(handles).chain(objects)
    }
}

/// Arguments of the hook, in the form that [`Hook::json`] writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookArguments {
    /// Limits that the hook sets.
    pub limits: ContainerLimits,
    /// State directory in which the hook records the container. Without a state directory, the hook sets no limits of
    /// RDMA devices.
    pub state_dir: Option<PathBuf>,
}

impl HookArguments {
    /// Parses the arguments. Returns `None` in three cases:
    /// - an argument is unknown, or its value is invalid
    /// - there are no limits
    /// - there are limits of RDMA devices and no state directory: DEL and the daemon could not lift such limits
    pub fn of(arguments: &[String]) -> Option<Self> {
        let mut all = Self::default();
        let number = |text: &str| {
            let number = text.parse().ok();
            number.filter(|it| (1..=RdmaLimits::MOST).contains(it))
        };
        for argument in arguments {
            if let Some(limit) = argument.strip_prefix(MEMLOCK) {
                all.limits.memlock = Some(Memlock::of_text(limit)?);
            } else if let Some(limit) = argument.strip_prefix(HANDLES) {
                all.limits.rdma.handles = Some(number(limit)?);
            } else if let Some(path) = argument.strip_prefix(STATE_DIR) {
                all.state_dir = Some(path.into());
            } else {
                let limit = argument.strip_prefix(OBJECTS)?;
                all.limits.rdma.objects = Some(number(limit)?);
            }
        }
        let is_whole = |it: &Self| it.limits.rdma.is_empty() || it.state_dir.is_some();
        Some(all).filter(|it| !it.limits.is_empty() && is_whole(it))
    }
}

/// The hook of a container, with the limits that it sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// Path of `rdma-cni` on the node.
    program: PathBuf,
    #[serde(flatten)]
    limits: ContainerLimits,
    /// State directory in which the hook records the container ([`limited`](crate::limited)). `None`: the hook does not
    /// record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state_dir: Option<PathBuf>,
}

impl Hook {
    /// Returns the hook that runs `rdma-cni` of the directory `plugins` and sets the limits. If RDMA devices are
    /// limited, the hook also records the container in `state_dir`.
    pub fn new(plugins: &Path, limits: ContainerLimits, state_dir: &Path) -> Self {
        let is_recorded = !limits.rdma.is_empty();
        Self {
            program: plugins.join("rdma-cni"),
            limits,
            state_dir: is_recorded.then(|| state_dir.to_owned()),
        }
    }

    /// Returns the hook in the format of CDI (`hooks` of `containerEdits`). The runtime calls the hook after it has
    /// made the container's process, and before this process executes its program (`createRuntime`, OCI runtime
    /// specification, `config.md`).
    pub fn json(&self) -> Value {
        let words = ["rdma-cni", HOOK].map(str::to_owned).into_iter();
        let state_dir = self.state_dir.iter();
        let state_dir = state_dir.map(|path| format!("{STATE_DIR}{}", path.display()));
        let arguments: Vec<String> = words
            .chain(self.limits.arguments())
            .chain(state_dir)
            .collect();
        json!({"hookName": "createRuntime", "path": self.program, "args": arguments})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(
        memlock: Option<Memlock>,
        handles: Option<u32>,
        objects: Option<u32>,
    ) -> ContainerLimits {
        let rdma = RdmaLimits { handles, objects };
        ContainerLimits { memlock, rdma }
    }

    #[test]
    fn the_hook_reads_the_arguments_that_its_entry_has() {
        for expected in [
            limits(Some(Memlock::Unlimited), None, None),
            limits(Some(Memlock::Bytes(1)), Some(1), Some(RdmaLimits::MOST)),
            limits(None, None, Some(3)),
        ] {
            let state_dir = Path::new("/var/lib/state");
            let json = Hook::new(Path::new("/opt"), expected, state_dir).json();
            let words: Vec<String> = serde_json::from_value(json["args"].clone()).expect("texts");
            let read = HookArguments::of(&words[2..]).expect("its own");
            assert_eq!(read.limits, expected);
            let is_recorded = !expected.rdma.is_empty();
            assert_eq!(read.state_dir, is_recorded.then(|| state_dir.to_owned()));
        }
        for argument in [
            "--rdma-handles=0",
            "--rdma-objects=2147483648",
            "--rdma-objects=",
            "--other=1",
            "--state-dir=/var/lib/state",
            "--rdma-objects=3",
        ] {
            let argument = [argument.to_owned()];
            assert_eq!(HookArguments::of(&argument), None, "{argument:?}");
        }
    }

    #[test]
    fn a_container_of_two_resources_locks_the_greater_and_has_the_lower_number_of_objects() {
        let one = limits(Some(Memlock::Bytes(1)), None, Some(3));
        let other = limits(Some(Memlock::Unlimited), Some(5), Some(2));
        let both = limits(Some(Memlock::Unlimited), Some(5), Some(2));
        assert_eq!(one.with(other), both);
        assert_eq!(other.with(one), both);
        assert_eq!(one.with(ContainerLimits::default()), one);
    }
}
