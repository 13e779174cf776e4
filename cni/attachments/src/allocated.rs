// SPDX-License-Identifier: Apache-2.0
//! Devices that kubelet allocated to the pod's containers.

use rdma_resources::CharNode;
use serde::{Deserialize, Serialize};
use std::fmt;

/// An id of one of kubelet's resources.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Id {
    /// The resource's name.
    pub resource: String,
    /// The id.
    pub id: String,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} id {:?}", self.resource, self.id)
    }
}

/// Kubelet's allocation of one rail's device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocated {
    /// The ids by which kubelet allocated the device.
    pub ids: Vec<Id>,
    /// True if a container gets the device by its CDI name from the daemon's answer to Allocate. False for a claim.
    #[serde(default)]
    pub cdi: bool,
    /// The character devices that containers get by the RDMA device's CDI name, as the daemon observed them at
    /// Allocate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_name: Vec<CharNode>,
    /// The character devices that containers get by path, as the daemon observed them at Allocate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_path: Vec<CharNode>,
}
