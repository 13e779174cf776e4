// SPDX-License-Identifier: Apache-2.0
//! When a refused pod is deleted: by what was refused and deleted before. Nothing is asked and nothing is
//! done here.
//!
//! - Not before kubelet has tried a second time, 10 to 15 s later: what was refused in the middle of a change
//!   is right then, and the name is still the same pod's.
//! - A device that is gone may come back: it has a minute.
//! - What a controller makes anew, and is refused again, waits a minute, then two, then four, an hour at
//!   most. Pods that were there already when the first one was deleted are not made anew: a whole job does
//!   not wait for that.
//! - No more than twenty in ten minutes, whosever they are.

use super::{Cure, Ids, PodName, pod::Pod};
use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

/// Kubelet's next try is 10 to 15 s after one that failed (`backOffPeriod` and its jitter in
/// `pkg/kubelet/kubelet.go` and `pod_workers.go`).
pub const SECOND_TRY: Duration = Duration::from_secs(5);

/// A NIC's driver that is loaded anew takes less.
const DEVICE_AWAY: Duration = Duration::from_secs(60);

/// Longer than kubelet's longest pause between two tries of a container that crashed (`MaxContainerBackOff`,
/// five minutes).
const FORGOTTEN: Duration = Duration::from_secs(10 * 60);

const BACK_OFF: Duration = Duration::from_secs(60);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(60 * 60);
/// An owner without a deletion for so long begins anew.
const OWNER_FORGOTTEN: Duration = Duration::from_secs(2 * 60 * 60);

const MOST: usize = 20;
const MOST_WITHIN: Duration = Duration::from_secs(10 * 60);

/// What was refused and deleted on this node.
#[derive(Debug, Default)]
pub struct History {
    refused: HashMap<Ids, Seen>,
    owners: HashMap<String, Round>,
    deleted: VecDeque<Instant>,
}

/// A refused container's pod.
#[derive(Clone, Debug)]
struct Seen {
    name: PodName,
    pod: Pod,
    first: Instant,
    last: Instant,
    /// It is kept for good.
    stays: bool,
    /// The wait that was told.
    told: bool,
    /// When its event was written, by the API server's clock.
    event: Option<String>,
}

/// Deletions of one owner's pods, of which none was made after the first of them.
#[derive(Clone, Debug)]
struct Round {
    /// When the first was deleted, by the API server's clock.
    began: String,
    last: Instant,
    /// From 1.
    number: u32,
}

impl Round {
    /// How long pods that were made since wait.
    fn back_off(&self) -> Duration {
        let doubled = self.number.saturating_sub(1).min(16);
        LONGEST_BACK_OFF.min(BACK_OFF * 2_u32.pow(doubled))
    }
}

/// What is to be done with a refused pod now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, or not yet.
    None,
    /// Not yet, which is worth a line.
    Told(String),
    /// It has to be known which pod it is.
    Look,
    /// It is to be deleted.
    Delete {
        /// The pod.
        pod: Pod,
        /// When its event was written, if it was.
        event: Option<String>,
    },
}

impl History {
    /// A container was refused at `now`.
    pub fn refused(&mut self, ids: &Ids, name: &PodName, cure: Cure, now: Instant) -> Step {
        self.forget(now);
        let patience = match cure {
            Cure::Time => return Step::None,
            Cure::AnotherPod => SECOND_TRY,
            Cure::DeviceOrAnotherPod => DEVICE_AWAY,
        };
        let Some(seen) = self.refused.get_mut(ids).filter(|it| it.name == *name) else {
            return Step::Look;
        };
        seen.last = now;
        if seen.stays || now.duration_since(seen.first) < patience {
            return Step::None;
        }
        let owner = seen.pod.owner.as_ref();
        let round = owner.and_then(|it| self.owners.get(&it.uid));
        // made since: the back-off is for those
        let round = round.filter(|round| seen.pod.created >= round.began);
        let wait = round.and_then(|round| {
            let left = (round.last + round.back_off()).checked_duration_since(now)?;
            (!left.is_zero()).then(|| {
                format!(
                    "pods of the same controller were deleted {} before and refused again; this one \
                     is deleted in {} s",
                    times(round.number),
                    left.as_secs()
                )
            })
        });
        let wait = wait.or_else(|| {
            (self.deleted.len() >= MOST).then(|| {
                format!(
                    "{MOST} pods of this node were deleted within {} minutes; it waits",
                    MOST_WITHIN.as_secs() / 60
                )
            })
        });
        match wait {
            None => Step::Delete {
                pod: seen.pod.clone(),
                event: seen.event.clone(),
            },
            Some(_) if std::mem::replace(&mut seen.told, true) => Step::None,
            Some(wait) => Step::Told(wait),
        }
    }

    /// Which pod it is that was refused; not for the first time, if it `stays`.
    pub fn is(&mut self, ids: Ids, name: PodName, pod: Pod, stays: bool, now: Instant) {
        let seen = Seen {
            name,
            pod,
            first: now,
            last: now,
            stays,
            told: false,
            event: None,
        };
        self.refused.insert(ids, seen);
    }

    /// Its event was written, at that time of the API server's.
    pub fn has_event(&mut self, ids: &Ids, written: &str) {
        if let Some(seen) = self.refused.get_mut(ids) {
            seen.event = Some(written.to_owned());
        }
    }

    /// It may start, or is not there any more.
    pub fn ended(&mut self, ids: &Ids) {
        self.refused.remove(ids);
    }

    /// It was deleted, after its event.
    pub fn deleted(&mut self, pod: &Pod, event: &str, now: Instant) {
        // others of its containers may have been refused, too
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
