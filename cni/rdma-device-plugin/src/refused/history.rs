// SPDX-License-Identifier: Apache-2.0
//! Decides when the daemon deletes a refused pod, from earlier refusals and deletions. This module has no I/O.
//!
//! - The daemon deletes a pod at kubelet's second attempt, 10 to 15 s after the first attempt. If the first refusal was
//!   only due to a change of the node, the pod usually starts at the second attempt. The second attempt also shows that
//!   the pod that the daemon has read is still the refused one.
//! - If a device is missing, the daemon waits a minute, because the device may come back.
//! - If the pod's controller makes a new pod, and the daemon refuses the new pod, too, the daemon deletes it at the
//!   earliest a minute after the last deletion of one of the controller's pods. The next delays are two minutes, four
//!   minutes, and so on up to an hour. They do not apply to pods that existed at the first deletion, so that a whole
//!   job is not delayed.
//! - The daemon deletes at most twenty pods of the node in ten minutes, of all owners together.

use super::{Ids, PodName, pod::Pod};
use offer::Cure;
use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

/// Shortest time between two refusals that the daemon counts as two attempts of kubelet. Kubelet's next attempt follows
/// 10 to 15 s after a failure (`backOffPeriod` and its jitter in `pkg/kubelet/kubelet.go` and `pod_workers.go`).
pub const SECOND_TRY: Duration = Duration::from_secs(5);

/// Time for which the daemon waits for a missing device. A reload of a NIC's driver takes less time.
const DEVICE_AWAY: Duration = Duration::from_secs(60);

/// Time since the last refusal after which the daemon forgets a container. For a pod that the daemon never deletes, the
/// time counts from the first refusal. It is longer than kubelet's longest delay for a container that crashed
/// (`MaxContainerBackOff`, five minutes).
const FORGOTTEN: Duration = Duration::from_secs(10 * 60);

const BACK_OFF: Duration = Duration::from_secs(60);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(60 * 60);
/// Time without a deletion after which an owner's back-off restarts.
const OWNER_FORGOTTEN: Duration = Duration::from_secs(2 * 60 * 60);

const MOST: usize = 20;
const MOST_WITHIN: Duration = Duration::from_secs(10 * 60);

/// Refusals and deletions on this node.
#[derive(Debug, Default)]
pub struct History {
    refused: HashMap<Ids, RefusedPod>,
    owners: HashMap<String, Round>,
    deleted: VecDeque<Instant>,
}

/// Pod of a refused container.
#[derive(Clone, Debug)]
struct RefusedPod {
    name: PodName,
    pod: Pod,
    first: Instant,
    last: Instant,
    /// True if the daemon never deletes the pod.
    stays: bool,
    /// True if the log has a line about the wait.
    is_reported: bool,
    /// Time of the pod's event by the API server's clock; `None`: no event was written.
    event: Option<String>,
}

/// One round of deletions of an owner's pods. The owner made all these pods before the first deletion of the round.
#[derive(Clone, Debug)]
struct Round {
    /// Time of the round's first deletion, by the API server's clock.
    began: String,
    last: Instant,
    /// Number of the round. The first round has the number 1.
    number: u32,
}

impl Round {
    /// Returns the delay after the last deletion for pods that the owner made after the round began.
    fn back_off(&self) -> Duration {
        let doubled = self.number.saturating_sub(1).min(16);
        LONGEST_BACK_OFF.min(BACK_OFF * 2_u32.pow(doubled))
    }
}

/// Next step for a refused pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// No step is necessary at present.
    None,
    /// The deleter does not delete the pod yet. It logs this line about the wait.
    Wait(String),
    /// The deleter reads the pod from the API server.
    Read,
    /// The deleter deletes the pod.
    Delete {
        /// Pod to delete.
        pod: Pod,
        /// Time of the pod's event, if the event was written.
        event: Option<String>,
    },
}

impl History {
    /// Returns the next step after the daemon refused a container at the time `now`. Updates the time of the last
    /// refusal if [`Self::is`] has recorded the container's pod, and `cure` is not [`Cure::Time`].
    pub fn refused(&mut self, ids: &Ids, name: &PodName, cure: Cure, now: Instant) -> Step {
        self.forget(now);
        let limit = match cure {
            Cure::Time => return Step::None,
            Cure::AnotherPod => SECOND_TRY,
            Cure::DeviceOrAnotherPod => DEVICE_AWAY,
        };
        let Some(seen) = self.refused.get_mut(ids).filter(|it| it.name == *name) else {
            return Step::Read;
        };
        seen.last = now;
        if seen.stays || now.duration_since(seen.first) < limit {
            return Step::None;
        }
        let owner = seen.pod.owner.as_ref();
        let round = owner.and_then(|it| self.owners.get(&it.uid));
        // the back-off applies only to pods that the owner made after the round began
        let round = round.filter(|round| seen.pod.created >= round.began);
        let wait = round.and_then(|round| {
            let left = (round.last + round.back_off()).checked_duration_since(now)?;
            (!left.is_zero()).then(|| {
                format!(
                    "pods of the same controller were deleted {} before, and the new pods refused; \
                     the daemon deletes this pod in {} s at the earliest",
                    times(round.number),
                    left.as_secs()
                )
            })
        });
        let wait = wait.or_else(|| {
            (self.deleted.len() >= MOST).then(|| {
                format!(
                    "the daemon deleted {MOST} pods of this node within {} minutes, and deletes no further pod now",
                    MOST_WITHIN.as_secs() / 60
                )
            })
        });
        match wait {
            None => Step::Delete {
                pod: seen.pod.clone(),
                event: seen.event.clone(),
            },
            Some(_) if std::mem::replace(&mut seen.is_reported, true) => Step::None,
            Some(wait) => Step::Wait(wait),
        }
    }

    /// Records the attributes of a refused pod. `stays` is true if the daemon never deletes the pod.
    pub fn is(&mut self, ids: Ids, name: PodName, pod: Pod, stays: bool, now: Instant) {
        let seen = RefusedPod {
            name,
            pod,
            first: now,
            last: now,
            stays,
            is_reported: false,
            event: None,
        };
        self.refused.insert(ids, seen);
    }

    /// Records the time of the pod's event, by the API server's clock.
    pub fn has_event(&mut self, ids: &Ids, written: &str) {
        if let Some(seen) = self.refused.get_mut(ids) {
            seen.event = Some(written.to_owned());
        }
    }

    /// Forgets a container that may start, or no longer exists.
    pub fn ended(&mut self, ids: &Ids) {
        self.refused.remove(ids);
    }

    /// Records that the pod was deleted at the time `now`. `event` is the time of the pod's event.
    pub fn deleted(&mut self, pod: &Pod, event: &str, now: Instant) {
        // forget all containers of the pod: several of them may have been refused
        self.refused.retain(|_, seen| seen.pod.uid != pod.uid);
        self.deleted.push_back(now);
        let Some(owner) = &pod.owner else { return };
        let round = self.owners.get(&owner.uid);
        let (began, number) = match round {
            Some(round) if pod.created < round.began => (round.began.clone(), round.number),
            round => (event.to_owned(), round.map_or(0, |it| it.number) + 1),
        };
        let last = now;
        let round = Round {
            began,
            last,
            number,
        };
        self.owners.insert(owner.uid.clone(), round);
    }

    fn forget(&mut self, now: Instant) {
        let since = |at: Instant| now.saturating_duration_since(at);
        self.refused.retain(|_, seen| {
            let at = if seen.stays { seen.first } else { seen.last };
            since(at) < FORGOTTEN
        });
        self.owners
            .retain(|_, round| since(round.last) < OWNER_FORGOTTEN);
        self.deleted.retain(|at| since(*at) < MOST_WITHIN);
    }
}

fn times(number: u32) -> String {
    match number {
        1 => "once".to_owned(),
        number => format!("{number} times"),
    }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
