// SPDX-License-Identifier: Apache-2.0
//! Owner of a rail's devices.

use crate::record::Attachment;
use serde::{Deserialize, Serialize};

/// Owner of a rail's devices. It alone decides which attributes are restored, and whether the driver may be bound anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// The pod's, wherever it has moved them; while its ADD is [under way or was killed](crate::Phase::Attaching), the pod's or still
    /// the host's.
    #[default]
    Pod,
    /// The pod's until the driver of their function is bound anew.
    Rebinding {
        /// Index on the host of the netdev that is replaced, which ends what lies on it in other namespaces. 0: the devices
        /// are in a namespace that is neither the host's nor the pod's.
        index: u32,
        /// The driver.
        driver: String,
    },
    /// The host's since the driver was bound anew, which is done once. What they lack is restored.
    Rebound,
    /// Free for other owners. The devices are on the host, restored as far as the kernel allowed, and a verb has waited for
    /// network managers. The verb failed because of another rail. Nothing of these devices is restored any more, and other
    /// pods get them.
    Returned,
}

impl Stage {
    pub(crate) fn is_pods(&self) -> bool {
        *self == Self::Pod
    }
}

impl Attachment {
    /// Returns the record as other pods must respect it: without [returned](Stage::Returned) rails.
    pub fn without_returned(mut self) -> Self {
        self.rails.retain(|rail| rail.stage != Stage::Returned);
        self
    }
}
