// SPDX-License-Identifier: Apache-2.0
//! Tells pods why their containers may not start, by an event: once for each reason, at kubelet's second try, since
//! what was refused in the middle of a change is right then. Each daemon of a node tells of those that it refused.

use super::{
    event::{Budget, Event},
    pods,
};
use crate::{
    api::{Api, ApiError},
    refused::{Ids, PodName, SECOND_TRY, Verdict},
};
use std::{
    collections::HashMap,
    path::PathBuf,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// The reason of the event.
const REASON: &str = "RdmaPodRefused";

/// Kubelet tries more often than that, or has given up.
const FORGOTTEN: Duration = Duration::from_secs(10 * 60);

/// Another reason is told no sooner.
const OTHER_REASON: Duration = Duration::from_secs(60);

/// An event is kept for an hour (`--event-ttl` of the API server): then the same is told again.
const EXPIRED: Duration = Duration::from_secs(60 * 60);

/// How long nothing is asked after a failure: at first, and at most.
const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Tells refused pods.
#[derive(Debug)]
pub struct Refusals {
    account: PathBuf,
    cni_cache: PathBuf,
    told: Told,
    /// What went wrong last: it is said once.
    failure: Option<String>,
    /// Nothing is asked before then.
    rests_until: Option<Instant>,
    wait: Duration,
}

/// What was refused, and told.
#[derive(Debug, Default)]
struct Told {
    seen: HashMap<Ids, Seen>,
    budget: Budget,
}

#[derive(Debug)]
struct Seen {
    pod: PodName,
    first: Instant,
    last: Instant,
    told: Option<(String, Instant)>,
}

impl Refusals {
    /// One with the token in `account`.
    pub fn new(account: PathBuf, cni_cache: PathBuf) -> Self {
        Self {
            account,
            cni_cache,
            told: Told::default(),
            failure: None,
            rests_until: None,
            wait: AGAIN[0],
        }
    }

    /// Until nobody tells verdicts any more.
    pub async fn run(mut self, mut verdicts: mpsc::Receiver<Verdict>) {
        while let Some(verdict) = verdicts.recv().await {
            match verdict {
                Verdict::MayStart(ids) => drop(self.told.seen.remove(&ids)),
                Verdict::Refused { ids, pod, why, .. } => self.see_to(&ids, &pod, &why).await,
            }
        }
    }

    async fn see_to(&mut self, ids: &Ids, pod: &PodName, why: &str) {
        let now = Instant::now();
        let is_due = self.told.is_due(ids, pod, why, now);
        if !is_due || self.rests_until.is_some_and(|end| now < end) {
            return;
        }
        match self.write(pod, why).await {
            Ok(()) => {
                self.told.told(ids, why, Instant::now());
                (self.failure, self.rests_until, self.wait) = (None, None, AGAIN[0]);
            }
            Err(error) => {
                let line = error.to_string();
                if self.failure.as_ref() != Some(&line) {
                    log::warn!("{pod} is not told why it cannot start: {line}");
                    self.failure = Some(line);
                }
                self.rests_until = Some(Instant::now() + self.wait);
                self.wait = (self.wait * 2).min(AGAIN[1]);
            }
        }
    }

    async fn write(&self, pod: &PodName, why: &str) -> Result<(), ApiError> {
        let api = Api::new(&self.account)?;
        let uid = pods::uid(&self.cni_cache, pod).await;
        let event = Event {
            pod,
            uid: uid.as_deref(),
            node: &api.node,
            reason: REASON,
            is_warning: true,
            message: why,
        };
        match event.write(&api.client).await {
            // its namespace is gone, and so will it be
            Err(error) if error.code() != Some(404) => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl Told {
    /// Whether the pod is to be told `why` now.
    fn is_due(&mut self, ids: &Ids, pod: &PodName, why: &str, now: Instant) -> bool {
        let since = |at: Instant| now.saturating_duration_since(at);
        self.seen.retain(|_, seen| since(seen.last) < FORGOTTEN);
        let seen = self.seen.entry(ids.clone()).or_insert_with(|| Seen {
            pod: pod.clone(),
            first: now,
            last: now,
            told: None,
        });
        if seen.pod != *pod {
            (seen.pod, seen.first, seen.told) = (pod.clone(), now, None);
        }
        seen.last = now;
        let pause = match &seen.told {
            None => Duration::ZERO,
            Some((before, _)) if before == why => EXPIRED,
            Some(_) => OTHER_REASON,
        };
        let is_over = seen.told.as_ref().is_none_or(|(_, at)| since(*at) >= pause);
        since(seen.first) >= SECOND_TRY && is_over && self.budget.room_in(now).is_zero()
    }

    fn told(&mut self, ids: &Ids, why: &str, now: Instant) {
        self.budget.spend(now);
        if let Some(seen) = self.seen.get_mut(ids) {
            seen.told = Some((why.to_owned(), now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> PodName {
        PodName {
            namespace: "default".into(),
            name: name.into(),
        }
    }

    #[test]
    fn a_pod_is_told_once_for_each_reason() {
        let mut told = Told::default();
        let ids = Ids::new("rdma/hca", &["0".into()]);
        let start = Instant::now();
        let mut refused = |name: &str, why: &str, seconds: u64| {
            let now = start + Duration::from_secs(seconds);
            let is_due = told.is_due(&ids, &pod(name), why, now);
            if is_due {
                told.told(&ids, why, now);
            }
            is_due
        };
        for (name, why, second, is_due) in [
            ("a", "gone", 0, false),
            ("a", "gone", 12, true),
            ("a", "gone", 24, false),
            ("a", "renumbered", 36, false),
            ("a", "renumbered", 72, true),
            // another pod has the id by now
            ("b", "renumbered", 84, false),
            ("b", "renumbered", 96, true),
            // forgotten, as nobody tried
            ("b", "renumbered", 900, false),
            ("b", "renumbered", 912, true),
        ] {
            assert_eq!(refused(name, why, second), is_due, "{name} {second}");
        }
        let mut again = (1000..)
            .step_by(300)
            .map(|it| (it, refused("b", "renumbered", it)));
        let (second, _) = again.find(|(_, is_due)| *is_due).expect("an hour later");
        assert!((4512..4900).contains(&second), "{second}");
    }

    #[test]
    fn one_that_may_start_by_the_second_try_is_not_told() {
        let mut told = Told::default();
        let ids = Ids::new("rdma/hca", &["0".into()]);
        let start = Instant::now();
        assert!(!told.is_due(&ids, &pod("a"), "moved", start));
        told.seen.remove(&ids);
        let later = start + Duration::from_secs(600);
        assert!(!told.is_due(&ids, &pod("a"), "moved", later));
    }
}
