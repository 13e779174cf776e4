// SPDX-License-Identifier: Apache-2.0
//! Pods whose container may not start (PreStartContainer). Kubelet tries again for ever in the same pod, and
//! no controller takes it away, as it has not failed: it waits for a person. Where this is asked for
//! (`--refused-pods delete`), the daemon deletes it, so that its controller makes another.
//!
//! | module | |
//! |---|---|
//! | [`pod`] | what has to be known of a pod, and which ones are kept whatever happens |
//! | [`history`] | when: pure, of what was refused and deleted before |
//! | [`deleter`] | the one task that asks the API server: look, event, deletion |
//!
//! Kubelet never waits for any of that: what is refused goes into a queue that is bounded, and what finds
//! no room there comes again with kubelet's next try.

pub mod deleter;
pub mod history;
pub mod pod;

pub use deleter::Deleter;
pub use history::SECOND_TRY;

use crate::offer::Stale;
use clap::ValueEnum;
use tokio::sync::mpsc;
use tonic::Status;

/// What becomes of a pod whose container may not start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RefusedPods {
    /// A person deletes it
    #[default]
    Keep,
    /// It is deleted, if it has a controller that makes another: needs a service account's token
    Delete,
}

/// What ends a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cure {
    /// It may pass by itself: kubelet tries again.
    Time,
    /// Nothing but another pod.
    AnotherPod,
    /// A device that comes back; if it does not, another pod.
    DeviceOrAnotherPod,
}

/// A container may not start.
#[derive(Clone, Debug)]
pub struct Refused {
    /// What kubelet is told.
    pub status: Status,
    /// What ends it.
    pub cure: Cure,
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        let cure = Cure::Time;
        Self { status, cure }
    }
}

impl From<Stale> for Refused {
    fn from(stale: Stale) -> Self {
        let cure = match &stale {
            Stale::Gone { .. } => Cure::DeviceOrAnotherPod,
            // no move and no new network gives back what another device has now
            Stale::Renumbered { .. } => Cure::AnotherPod,
            Stale::NotInPlace { .. } => Cure::Time,
        };
        let status = Status::failed_precondition(stale.to_string());
        Self { status, cure }
    }
}

/// What kubelet asked about: ids of a resource that one container has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ids {
    resource: String,
    ids: Vec<String>,
}

impl Ids {
    /// In whichever order.
    pub fn new(resource: &str, ids: &[String]) -> Self {
        let mut ids = ids.to_vec();
        ids.sort();
        Self {
            resource: resource.to_owned(),
            ids,
        }
    }
}

/// A pod, by its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// `default/trainer-0`
impl std::fmt::Display for PodName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What came of a container's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may start.
    MayStart(Ids),
    /// It may not.
    Refused {
        /// What it was given.
        ids: Ids,
        /// Whose it is.
        pod: PodName,
        /// The sentence.
        why: String,
        /// What ends it.
        cure: Cure,
    },
}

/// Verdicts that wait. A node has 110 pods.
const WAITING: usize = 128;

/// Where verdicts are put: into a queue of each that sees to them; nowhere, if nobody does.
#[derive(Clone, Debug, Default)]
pub struct Verdicts(Vec<mpsc::Sender<Verdict>>);

impl Verdicts {
    /// One more queue, of those that are told from now on.
    pub fn queue(&mut self) -> mpsc::Receiver<Verdict> {
        let (sender, receiver) = mpsc::channel(WAITING);
        self.0.push(sender);
        receiver
    }

    /// Tells one; it waits for nothing.
    pub fn tell(&self, verdict: &Verdict) {
        for queue in &self.0 {
            // one that finds no room comes again
            if let Err(mpsc::error::TrySendError::Full(verdict)) = queue.try_send(verdict.clone()) {
                log::debug!("too many refused pods wait for the API server: {verdict:?}");
            }
        }
    }
}
