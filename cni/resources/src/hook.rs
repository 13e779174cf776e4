// SPDX-License-Identifier: Apache-2.0
//! The limits of a container that no CDI entry can set, and the runtime's hook that sets them: `rdma-cni oci-hook`.

use crate::Memlock;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// First argument by which `rdma-cni` is the hook.
pub const HOOK: &str = "oci-hook";

const MEMLOCK: &str = "--memlock=";
const HANDLES: &str = "--rdma-handles=";
const OBJECTS: &str = "--rdma-objects=";

/// Limits that the hook sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerLimits {
    /// Limit of locked memory; `None`: the runtime's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memlock: Option<Memlock>,
    /// Limits of the rdma cgroup.
    #[serde(flatten)]
    pub rdma: RdmaLimits,
}

/// Limits of a container's use of each RDMA device (`Documentation/admin-guide/cgroup-v2.rst`, RDMA).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaLimits {
    /// Number of open contexts (`hca_handle`); `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handles: Option<u32>,
    /// Number of queue pairs, memory regions, completion queues and other objects together (`hca_object`); `None`: no
    /// limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<u32>,
}

impl RdmaLimits {
    /// Largest limit that the kernel takes (`rdmacg_parse_limits()`, `kernel/cgroup/rdma.c`).
    pub const MOST: u32 = i32::MAX as u32;

    /// Reports whether neither is limited.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl ContainerLimits {
    /// Reports whether the hook has nothing to set.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Returns the limits of a container that has the resources of both: the greater limit of locked memory, and the
    /// lower ones of RDMA devices.
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

    /// Reads the arguments of the hook, as [`Hook::json`] writes them. `None`: one is no argument of the hook, or there
    /// are none.
    pub fn of_arguments(arguments: &[String]) -> Option<Self> {
        let mut limits = Self::default();
        let number = |text: &str| {
            let number = text.parse().ok();
            number.filter(|it| (1..=RdmaLimits::MOST).contains(it))
        };
        for argument in arguments {
            if let Some(limit) = argument.strip_prefix(MEMLOCK) {
                limits.memlock = Some(Memlock::of_text(limit)?);
            } else if let Some(limit) = argument.strip_prefix(HANDLES) {
                limits.rdma.handles = Some(number(limit)?);
            } else {
                let limit = argument.strip_prefix(OBJECTS)?;
                limits.rdma.objects = Some(number(limit)?);
            }
        }
        Some(limits).filter(|it| !it.is_empty())
    }

    fn arguments(self) -> impl Iterator<Item = String> {
        let memlock = self.memlock.map(|it| format!("{MEMLOCK}{it}"));
        let handles = self.rdma.handles.map(|it| format!("{HANDLES}{it}"));
        let objects = self.rdma.objects.map(|it| format!("{OBJECTS}{it}"));
        memlock.into_iter().chain(handles).chain(objects)
    }
}

/// The hook of a container, with its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// Path of `rdma-cni` on the node.
    program: PathBuf,
    #[serde(flatten)]
    limits: ContainerLimits,
}

impl Hook {
    /// Returns the hook by which `rdma-cni` in the directory `plugins` sets the limits.
    pub fn new(plugins: &Path, limits: ContainerLimits) -> Self {
        Self {
            program: plugins.join("rdma-cni"),
            limits,
        }
    }

    /// Returns the hook in the form of CDI (`hooks` of `containerEdits`). The runtime calls it when the container's
    /// process exists and its program does not run yet (`createRuntime`, OCI runtime specification, `config.md`).
    pub fn json(&self) -> Value {
        let words = ["rdma-cni", HOOK].map(str::to_owned).into_iter();
        let arguments: Vec<String> = words.chain(self.limits.arguments()).collect();
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
            let json = Hook::new(Path::new("/opt"), expected).json();
            let words: Vec<String> = serde_json::from_value(json["args"].clone()).expect("texts");
            assert_eq!(ContainerLimits::of_arguments(&words[2..]), Some(expected));
        }
        for argument in [
            "--rdma-handles=0",
            "--rdma-objects=2147483648",
            "--rdma-objects=",
            "--other=1",
        ] {
            let argument = [argument.to_owned()];
            assert_eq!(
                ContainerLimits::of_arguments(&argument),
                None,
                "{argument:?}"
            );
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
