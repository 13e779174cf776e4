// SPDX-License-Identifier: Apache-2.0
//! Files that `rdma-device-plugin` writes for `rdma-cni` and the runtime. Kubelet passes only ids to the chain, and the
//! daemon may be down when a pod starts. The daemon therefore stores the devices of each id in the state directory.
//!
//! | module | file | written by | read by |
//! |---|---|---|---|
//! | [`published`] | `<stateDir>/resources.json`: the devices of each resource's ids | the daemon | `rdma-cni` |
//! | [`grant`] | `<stateDir>/granted/<resource>/<id>.json`: the devices that one Allocate granted | the daemon | the daemon, `rdma-cni` |
//! | [`cdi`] | `<CDI directory>/rdma-device-plugin-rdma.json` | the daemon, and `rdma-cni` after a move | the runtime |
//! | [`container`] | `<CDI directory>/rdma-device-plugin-container.json`, `<stateDir>/containers/<resource>/<id>/` | the daemon | the runtime, libraries in the container |
//! | [`limited`] | `<stateDir>/limited/<container id>.json`: the cgroups of a container with limits, and its pod | the hook | the daemon, `rdma-cni` |
//!
//! - [`hook`] contains a container's limits, and the hook that sets them.
//! - [`memlock`] is the limit of locked memory.
//! - [`nccl`] computes the variables by which NCCL chooses the right GID.
//!
//! Every file is replaced by a rename, so a reader never sees an incomplete file.

pub mod cdi;
pub mod container;
pub mod file;
pub mod grant;
pub mod hook;
pub mod limited;
pub mod memlock;
pub mod nccl;
pub mod published;

pub use cdi::Cdi;
pub use container::Containers;
pub use file::FileError;
pub use grant::{Grant, Grants};
pub use hook::{ContainerLimits, Hook, HookArguments, RdmaLimits};
pub use limited::LimitedContainers;
pub use memlock::Memlock;
pub use published::{Published, Resource};

use rdma_netns::CharDevice;
use serde::{Deserialize, Serialize};

/// Number of pods that may use an id's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Sharing {
    /// Shared: several ids can have the same device. If `rdma-cni` attaches the device, each pod gets a child netdev.
    Shared,
    /// Exclusive: only one id has the device.
    Exclusive,
}

/// A character device of a container, with the name and number that the daemon observed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CharNode {
    /// Name below `/dev/infiniband`, such as `uverbs0`.
    pub name: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl From<&CharDevice> for CharNode {
    fn from(device: &CharDevice) -> Self {
        Self {
            name: device.name.clone(),
            major: device.major,
            minor: device.minor,
        }
    }
}

impl CharNode {
    /// Returns the kind of the device, which is its name without the number: `uverbs`, `umad`, `issm`.
    pub fn kind(&self) -> &str {
        self.name.trim_end_matches(|c: char| c.is_ascii_digit())
    }
}
