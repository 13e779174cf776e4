// SPDX-License-Identifier: Apache-2.0
//! Pods whose container may not start (PreStartContainer). Kubelet retries forever in the same pod. No controller
//! replaces the pod, because it has not failed, so it waits for an administrator. With `--refused-pods delete` the
//! daemon deletes the pod, and its controller makes another one.
//!
//! | module | |
//! |---|---|
//! | [`pod`] | attributes of a pod, and pods that are never deleted |
//! | [`history`] | time of deletion: pure, from earlier refusals and deletions |
//! | [`deleter`] | task that uses the API server: read, event, deletion |
//!
//! Kubelet never waits for these tasks. Refusals go into a queue of limited length. A refusal that does not fit comes
//! again with kubelet's next attempt.

pub mod deleter;
pub mod history;
pub mod pod;

pub use deleter::Deleter;
pub use history::SECOND_TRY;

use crate::offer::Stale;
use clap::ValueEnum;
use tokio::sync::mpsc;
use tonic::Status;

/// Handling of a pod whose container may not start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RefusedPods {
    /// Keeps it for an administrator
    #[default]
    Keep,
    /// Deletes it if it has a controller that makes another: needs a service account's token
    Delete,
}

/// Event that ends a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cure {
    /// Time: it may pass by itself, and kubelet retries.
    Time,
    /// Only another pod can start.
    AnotherPod,
    /// The return of the device, or else another pod.
    DeviceOrAnotherPod,
}

/// Refusal of a container's start.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Answer to kubelet.
    pub status: Status,
    /// Event that ends it.
    pub cure: Cure,
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        let cure = Cure::Time;
        Self { status, cure }
    }
}

impl From<Stale> for Refused {
    fn from(Stale { why, cure }: Stale) -> Self {
        let status = Status::failed_precondition(why);
        Self { status, cure }
    }
}

/// Ids of a resource that one container has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ids {
    resource: String,
    ids: Vec<String>,
}

impl Ids {
    /// Returns the ids; their order does not matter.
    pub fn new(resource: &str, ids: &[String]) -> Self {
        let mut ids = ids.to_vec();
        ids.sort();
        Self {
            resource: resource.to_owned(),
            ids,
        }
    }
}

/// Name of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodName {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name within the namespace.
    pub name: String,
}

/// Formats `default/trainer-0`.
impl std::fmt::Display for PodName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Verdict on a container's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The container may start.
    MayStart(Ids),
    /// The container may not start.
    Refused {
        /// Ids that were refused.
        ids: Ids,
        /// Pod of the container.
        pod: PodName,
        /// Reason, a sentence.
        why: String,
        /// Event that ends it.
        cure: Cure,
    },
}

/// Capacity of a queue of verdicts. A node has 110 pods.
const WAITING: usize = 128;

/// Queues of verdicts, one for each handler.
#[derive(Clone, Debug, Default)]
pub struct Verdicts(Vec<mpsc::Sender<Verdict>>);

impl Verdicts {
    /// Adds a queue for later verdicts.
    pub fn queue(&mut self) -> mpsc::Receiver<Verdict> {
        let (sender, receiver) = mpsc::channel(WAITING);
        self.0.push(sender);
        receiver
    }

    /// Sends a verdict without waiting.
    pub fn send(&self, verdict: &Verdict) {
        for queue in &self.0 {
            // a verdict without room comes again
            if let Err(mpsc::error::TrySendError::Full(verdict)) = queue.try_send(verdict.clone()) {
                log::debug!("too many refused pods wait for the API server: {verdict:?}");
            }
        }
    }
}
