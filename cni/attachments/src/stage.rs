// SPDX-License-Identifier: Apache-2.0
//! Owner of a rail's devices.

use serde::{Deserialize, Serialize};

/// Owner of a rail's devices. The stage determines the attributes that a restore sets, and whether a restore may bind
/// the driver again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// The pod has the devices, in its own namespace or in a namespace into which the pod has moved them. While ADD is
    /// [running or was killed](crate::Phase::Attaching), the devices may still be on the host.
    #[default]
    Pod,
    /// The devices count as the pod's until the driver of their function is bound again.
    Rebinding {
        /// Index that the netdev has on the host before the driver is bound again. 0: the devices are neither in the
        /// host's namespace nor in the pod's.
        index: u32,
        /// The driver.
        driver: String,
    },
    /// The host has the devices, because their driver was bound again. A driver is bound again only once. A further
    /// restore sets the attributes that are missing.
    Rebound,
    /// The devices are on the host, restored as far as the kernel allowed. Other pods may get them. The CNI command
    /// that restored them has waited for network managers, and then failed because of another rail. No later command
    /// sets attributes of these devices.
    Returned,
}

impl Stage {
    pub(crate) fn is_pods(&self) -> bool {
        *self == Self::Pod
    }
}
