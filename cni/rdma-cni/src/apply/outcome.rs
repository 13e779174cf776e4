// SPDX-License-Identifier: Apache-2.0
//! Results of a restore.

use attachments::{Attribute, given_up::Lack};
use rdma_netns::Observed;

/// The reasons why an attachment is not restored, one sentence for each.
#[derive(Debug, Default, thiserror::Error)]
#[error("{}", left.join("; "))]
pub struct Incomplete {
    /// The reasons, as sentences.
    pub left: Vec<String>,
    /// True if a later try may succeed: the kernel returns the devices of a dying namespace with a delay, or a driver
    /// makes a missing netdev again.
    pub awaited: bool,
    /// True if the pod has more netdevs than one verb may remove under the node's lock. The next verb removes more.
    pub continues: bool,
    /// Indexes of the pod's netdevs that may belong to the host, and that the error message names.
    pub named: Vec<u32>,
    /// The restored rails. A restored rail may lack attributes that the restore gave up. `None`: no rail becomes free
    /// for other pods.
    pub restored: Option<Box<Restored>>,
}

/// Makes an error with these reasons, after which the verb does not wait and try again.
impl From<Vec<String>> for Incomplete {
    fn from(left: Vec<String>) -> Self {
        Self {
            left,
            ..Self::default()
        }
    }
}

impl Incomplete {
    /// Makes an error with one reason, after which the verb does not wait and try again.
    pub fn of(reason: impl ToString) -> Self {
        vec![reason.to_string()].into()
    }

    /// Returns the indexes of the restored rails.
    pub fn home(&self) -> &[usize] {
        self.restored.as_ref().map_or(&[], |it| &it.rails)
    }

    /// Returns true if nothing failed, and the restore only left netdevs that the next DEL, GC or ADD removes.
    pub fn only_continues(&self) -> bool {
        self.continues && self.left.len() == 1
    }

    /// Combines the reasons of two results.
    pub fn and(mut self, other: Self) -> Self {
        self.left.extend(other.left);
        self.awaited |= other.awaited;
        self.continues |= other.continues;
        self.named.extend(other.named);
        self.restored = self.restored.or(other.restored);
        self
    }
}

/// Rails that are restored.
#[derive(Debug)]
pub struct Restored {
    /// Indexes of the rails.
    pub rails: Vec<usize>,
    /// The observed state after the restore.
    pub observed: Observed,
    /// Attributes that this try gave up.
    pub given_up: Vec<GivenUp>,
    /// Attributes that the netdevs lack, from [`given_up::note`](crate::given_up::note).
    pub lacks: Vec<Lack>,
    /// True if a network manager may remove restored addresses.
    pub has_to_outlast: bool,
}

impl Restored {
    pub(super) fn new(rails: Vec<usize>, observed: Observed, given_up: Vec<GivenUp>) -> Self {
        Self {
            rails,
            observed,
            given_up,
            lacks: vec![],
            has_to_outlast: false,
        }
    }
}

/// An attribute that the restore could not restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Index of the rail, from 0.
    pub rail: usize,
    /// The attribute.
    pub attribute: Attribute,
    /// The reason, as a sentence that names the refused change.
    pub why: String,
}
