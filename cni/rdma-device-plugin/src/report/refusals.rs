// SPDX-License-Identifier: Apache-2.0
//! Writes an event about the reason why a pod's container must not start. The daemon reports a reason at kubelet's
//! second attempt, and the same reason again after an hour at the earliest. If the first refusal was only due to a
//! change of the node, the container usually starts at the second attempt. Each daemon of a node reports its own
//! refusals.

use super::{
    event::{Budget, Event},
    pods,
};
use crate::{
    api::Api,
    refused::{Ids, PodName, SECOND_TRY, Verdict},
    retry::Retry,
};
use kubernetes_api::RequestError;
use std::{
    collections::HashMap,
    path::PathBuf,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

const REASON: &str = "RdmaPodRefused";

/// Time after which the daemon forgets a refusal. As long as kubelet tries to start the pod, it retries within this
/// time.
const FORGOTTEN: Duration = Duration::from_secs(10 * 60);

/// Shortest interval between two reports of different reasons to one pod.
const OTHER_REASON: Duration = Duration::from_secs(60);

/// Lifetime of an event in the API server (`--event-ttl`). After this time the daemon reports the same reason again.
const EXPIRED: Duration = Duration::from_secs(60 * 60);

/// Writes events about refused pods.
#[derive(Debug)]
pub struct Refusals {
    account: PathBuf,
    cni_cache: PathBuf,
    reported: Reported,
    /// Failures that affect the requests for all pods.
    retry: Retry,
}

/// Refused containers, and the limit for the number of events.
#[derive(Debug, Default)]
struct Reported {
    seen: HashMap<Ids, Seen>,
    budget: Budget,
}

#[derive(Debug)]
struct Seen {
    pod: PodName,
    first: Instant,
    last: Instant,
    reported: Option<(String, Instant)>,
    /// Refusals of this pod's events by the API server.
    retry: Retry,
}

impl Refusals {
    /// Returns a reporter. The directory `account` contains the service account's token.
    pub fn new(account: PathBuf, cni_cache: PathBuf) -> Self {
        Self {
            account,
            cni_cache,
            reported: Reported::default(),
            retry: Retry::default(),
        }
    }

    /// Runs until the sender of verdicts is dropped.
    pub async fn run(mut self, mut verdicts: mpsc::Receiver<Verdict>) {
        while let Some(verdict) = verdicts.recv().await {
            match verdict {
                Verdict::MayStart(ids) => drop(self.reported.seen.remove(&ids)),
                Verdict::Refused { ids, pod, why, .. } => self.handle(&ids, &pod, &why).await,
            }
        }
    }

    async fn handle(&mut self, ids: &Ids, pod: &PodName, why: &str) {
        let now = Instant::now();
        let is_due = self.reported.is_due(ids, pod, why, now);
        if !is_due || !self.retry.is_over(now) {
            return;
        }
        match self.write(pod, why).await {
            Ok(()) => {
                self.reported.reported(ids, why, Instant::now());
                self.retry.ends();
            }
            Err(error) => {
                let line = error.to_string();
                if self.failed(ids, error.code(), &line, Instant::now()) {
                    log::warn!("cannot report to {pod} why it cannot start: {line}");
                }
            }
        }
    }

    /// Records a failure. Returns true if the caller must log `line`. A refusal by the API server, such as by a quota
    /// or policy, delays only the reports to one pod. A missing answer or a refused token (401) delays all reports.
    fn failed(&mut self, ids: &Ids, code: Option<u16>, line: &str, now: Instant) -> bool {
        let retry = match (code, self.reported.seen.get_mut(ids)) {
            (None | Some(401), _) | (_, None) => &mut self.retry,
            (Some(_), Some(seen)) => {
                self.retry.ends();
                &mut seen.retry
            }
        };
        let mut is_news = false;
        retry.fails(line, now, |_| is_news = true);
        is_news
    }

    async fn write(&self, pod: &PodName, why: &str) -> Result<(), RequestError> {
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
            // 404: the pod's namespace is gone, so the pod will soon end
            Err(error) if error.code() != Some(404) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Reported {
    /// Returns true if a report of the reason `why` to the pod is due.
    fn is_due(&mut self, ids: &Ids, pod: &PodName, why: &str, now: Instant) -> bool {
        let since = |at: Instant| now.saturating_duration_since(at);
        self.seen.retain(|_, seen| since(seen.last) < FORGOTTEN);
        let new = || Seen {
            pod: pod.clone(),
            first: now,
            last: now,
            reported: None,
            retry: Retry::default(),
        };
        let seen = self.seen.entry(ids.clone()).or_insert_with(new);
        if seen.pod != *pod {
            *seen = new();
        }
        seen.last = now;
        let is_over = seen.reported.as_ref().is_none_or(|(before, at)| {
            let pause = if before == why { EXPIRED } else { OTHER_REASON };
            since(*at) >= pause
        });
        let is_over = is_over && seen.retry.is_over(now);
        since(seen.first) >= SECOND_TRY && is_over && self.budget.room_in(now).is_zero()
    }

    fn reported(&mut self, ids: &Ids, why: &str, now: Instant) {
        self.budget.spend(now);
        if let Some(seen) = self.seen.get_mut(ids) {
            seen.reported = Some((why.to_owned(), now));
            seen.retry.ends();
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
    fn a_pod_gets_one_report_for_each_reason() {
        let mut reported = Reported::default();
        let ids = Ids::new("rdma/hca", &["0".into()]);
        let start = Instant::now();
        let mut refused = |name: &str, why: &str, seconds: u64| {
            let now = start + Duration::from_secs(seconds);
            let is_due = reported.is_due(&ids, &pod(name), why, now);
            if is_due {
                reported.reported(&ids, why, now);
            }
            is_due
        };
        for (name, why, second, is_due) in [
            ("a", "gone", 0, false),
            ("a", "gone", 12, true),
            ("a", "gone", 24, false),
            ("a", "renumbered", 36, false),
            ("a", "renumbered", 72, true),
            // another pod has the id now: this is its first refusal
            ("b", "renumbered", 84, false),
            ("b", "renumbered", 96, true),
            // without an attempt for ten minutes, the refusal is forgotten
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
    fn a_pod_that_is_refused_by_the_api_server_holds_up_no_other_one() {
        let mut refusals = Refusals::new(PathBuf::new(), PathBuf::new());
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let ids = ["a", "b"].map(|id| Ids::new("rdma/hca", &[id.into()]));
        let due = |refusals: &mut Refusals, now: Instant| {
            [(&ids[0], "a"), (&ids[1], "b")].map(|(ids, name)| {
                let is_due = refusals.reported.is_due(ids, &pod(name), "gone", now);
                is_due && refusals.retry.is_over(now)
            })
        };
        assert_eq!(due(&mut refusals, at(0)), [false; 2]);
        assert_eq!(due(&mut refusals, at(12)), [true; 2]);
        // a quota (403) affects the pods of one namespace
        assert!(refusals.failed(&ids[0], Some(403), "403", at(12)));
        assert_eq!(due(&mut refusals, at(12)), [false, true]);
        assert_eq!(due(&mut refusals, at(13)), [true; 2]);
        assert!(!refusals.failed(&ids[0], Some(403), "403", at(13)));
        assert_eq!(due(&mut refusals, at(14)), [false, true]);
        // an invalid token (401) or a missing answer affects all pods
        for (number, code) in [Some(401), None].into_iter().enumerate() {
            let now = at(60 + 12 * number as u64);
            assert_eq!(due(&mut refusals, now), [true; 2]);
            assert!(refusals.failed(&ids[1], code, &format!("{code:?}"), now));
            assert_eq!(due(&mut refusals, now), [false; 2]);
        }
    }

    #[test]
    fn a_container_that_may_start_at_the_second_attempt_is_not_reported() {
        let mut reported = Reported::default();
        let ids = Ids::new("rdma/hca", &["0".into()]);
        let start = Instant::now();
        assert!(!reported.is_due(&ids, &pod("a"), "moved", start));
        reported.seen.remove(&ids);
        let later = start + Duration::from_secs(600);
        assert!(!reported.is_due(&ids, &pod("a"), "moved", later));
    }
}
