// SPDX-License-Identifier: Apache-2.0
//! Owner of a rail's devices.

use crate::record::Attachment;
use serde::{Deserialize, Serialize};

/// Owner of a rail's devices. The stage determines which attributes are restored, and whether the driver may be bound
/// again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// The pod has the devices, in whatever namespace the pod has put them. While ADD is [running or was
    /// killed](crate::Phase::Attaching), the devices may still be on the host.
    #[default]
    Pod,
    /// The pod has the devices until the driver of their function is bound again.
    Rebinding {
        /// Index on the host of the netdev that the driver will make again. A rebind removes upper netdevs in other
        /// namespaces. 0: the devices are in a namespace that is neither the host's nor the pod's.
        index: u32,
        /// The driver.
        driver: String,
    },
    /// The host has the devices since their driver was bound again. A driver is bound again only once. Missing
    /// attributes are then restored.
    Rebound,
    /// The devices are free for other pods. They are on the host, restored as far as the kernel allowed, and a verb has
    /// waited for network managers. The verb failed because of another rail. No later verb restores attributes of these
    /// devices.
    Returned,
}

impl Stage {
    pub(crate) fn is_pods(&self) -> bool {
        *self == Self::Pod
    }
}

impl Attachment {
    /// Returns the record without [returned](Stage::Returned) rails, which other pods may use.
    pub fn without_returned(mut self) -> Self {
        self.rails.retain(|rail| rail.stage != Stage::Returned);
        self
    }
}
