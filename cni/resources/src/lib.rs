// SPDX-License-Identifier: Apache-2.0
//! What `rdma-device-plugin` hands over to `rdma-cni`, as files in the state directory that
//! both have: kubelet tells the chain ids only, and the daemon may be down when a pod starts.
//!
//! | module | file | written by | read by |
//! |---|---|---|---|
//! | [`published`] | `<stateDir>/resources.json`: what each resource's ids stand for | the daemon | `rdma-cni` |
//! | [`grant`] | `<stateDir>/granted/<resource>/<id>.json`: what one Allocate gave | the daemon | both |
//! | [`cdi`] | `<CDI directory>/rdma-device-plugin-rdma.json` | the daemon; after a move `rdma-cni` | the runtime |
//! | [`container`] | `<CDI directory>/rdma-device-plugin-container.json`, `<stateDir>/containers/<resource>/<id>/` | the daemon | the runtime; libraries in the container |
//!
//! [`nccl`] is what NCCL reads out of the last: by which GID it sends.
//!
//! Every file is renamed into place, whole: a reader never sees half of one.

pub mod cdi;
pub mod container;
pub mod file;
pub mod grant;
pub mod nccl;
pub mod published;

pub use cdi::Cdi;
pub use container::Containers;
pub use file::FileError;
pub use grant::{Grant, Grants};
pub use published::{Published, Resource};

use rdma_netns::CharDevice;
use serde::{Deserialize, Serialize};

/// Whether an id's devices are one pod's alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Sharing {
    /// Other ids stand for the same devices: a pod's netdev is a child of the node's.
    Shared,
    /// No other id does.
    Exclusive,
}

/// A character device that a container gets, as it was called and numbered at one time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CharNode {
    /// Name below `/dev/infiniband`: `uverbs0`.
    pub name: String,
    /// The kernel's number of the device.
    pub major: u32,
    /// The kernel's number of the device.
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
    /// What kind of device it is, by its name without the number: `uverbs`, `umad`, `issm`.
    pub fn kind(&self) -> &str {
        self.name.trim_end_matches(|c: char| c.is_ascii_digit())
    }
}
