// SPDX-License-Identifier: Apache-2.0
//! Owner of a rail's devices.

use crate::record::Attachment;
use serde::{Deserialize, Serialize};

/// Owner of a rail's devices. The owner alone decides which attributes are restored, and whether the driver may be
/// bound again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// The pod has the devices, wherever it has moved them. While its ADD is [under way or was
    /// killed](crate::Phase::Attaching), the host may still have them.
    #[default]
    Pod,
    /// The pod has the devices until the driver of their function is bound again.
    Rebinding {
        /// Index on the host of the netdev that is replaced; the replacement removes its upper netdevs in other
        /// namespaces. 0: the devices are in a namespace that is neither the host's nor the pod's.
        index: u32,
        /// The driver.
        driver: String,
    },
    /// The host has the devices since the driver was bound again, which happens once. Attributes that they lack are
    /// restored.
    Rebound,
    /// Free for other owners. The devices are on the host, restored as far as the kernel allowed, and a verb has waited
    /// for network managers. The verb failed because of another rail. No attribute of these devices is restored any
    /// more, and other pods can get them.
    Returned,
}

impl Stage {
    pub(crate) fn is_pods(&self) -> bool {
        *self == Self::Pod
    }
}

impl Attachment {
    /// Returns the record without [returned](Stage::Returned) rails: the part that other pods must respect.
    pub fn without_returned(mut self) -> Self {
        self.rails.retain(|rail| rail.stage != Stage::Returned);
        self
    }
}
