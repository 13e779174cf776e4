// SPDX-License-Identifier: Apache-2.0
//! Refused pods: the daemon does not let their container start (PreStartContainer). Kubelet retries forever with the
//! same pod. The pod has not failed, so no controller replaces it, and it waits for an administrator. With
//! `--refused-pods delete` the daemon deletes a pod that has a controller, which makes another one.
//!
//! | module | |
//! |---|---|
//! | [`pod`] | attributes of a pod, and pods that are never deleted |
//! | [`history`] | time of deletion, from earlier refusals and deletions: pure |
//! | [`deleter`] | task that reads and deletes pods and writes events by the API server |
//!
//! Kubelet never waits for these tasks. Verdicts enter a queue of limited length. If the queue is full, the daemon
//! drops a verdict, and kubelet's next attempt repeats a refusal.

pub mod deleter;
pub mod history;
pub mod pod;

pub use deleter::Deleter;
pub use history::SECOND_TRY;

use clap::ValueEnum;
use offer::{Cure, Stale};
use tokio::sync::mpsc;
use tonic::Status;

/// Handling of a pod whose container must not start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RefusedPods {
    /// Keeps the pod for an administrator
    #[default]
    Keep,
    /// Deletes the pod if its controller makes another one; needs a service account's token
    Delete,
}

/// Refusal of a container's start.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Answer to kubelet.
    pub status: Status,
    /// Event after which the container may start.
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
    /// Returns the ids in a fixed order: two values are equal if they have the same ids.
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

/// Formats the name as `default/trainer-0`.
impl std::fmt::Display for PodName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The daemon's decision on a container's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The container may start.
    MayStart(Ids),
    /// The container must not start.
    Refused {
        /// Ids of the refused container.
        ids: Ids,
        /// Pod of the container.
        pod: PodName,
        /// Reason of the refusal, as a sentence.
        why: String,
        /// Event after which the container may start.
        cure: Cure,
    },
}

/// Capacity of a queue of verdicts. A node has up to 110 pods by default.
const WAITING: usize = 128;

/// Queues of verdicts, one for each task that handles verdicts.
#[derive(Clone, Debug, Default)]
pub struct Verdicts(Vec<mpsc::Sender<Verdict>>);

impl Verdicts {
    /// Adds a queue, and returns the receiver of all later verdicts.
    pub fn queue(&mut self) -> mpsc::Receiver<Verdict> {
        let (sender, receiver) = mpsc::channel(WAITING);
        self.0.push(sender);
        receiver
    }

    /// Sends a verdict to all queues. Skips a full queue: kubelet's next attempt repeats a refusal.
    pub fn send(&self, verdict: &Verdict) {
        for queue in &self.0 {
            if let Err(mpsc::error::TrySendError::Full(verdict)) = queue.try_send(verdict.clone()) {
                log::debug!(
                    "skipping a verdict, because {WAITING} earlier verdicts wait: {verdict:?}"
                );
            }
        }
    }
}
