// SPDX-License-Identifier: Apache-2.0
//! One event about a pod in the API server (`core/v1`), and the limit for the number of events.

use crate::{api::AGENT, refused::PodName};
use conf_reader::one_line;
use kubernetes_api::{Client, Method, RequestError};
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    time::{Duration, Instant, SystemTime},
};

/// Longest message in bytes, below the API server's limit for events of `events.k8s.io` (`NoteLengthLimit`, 1024).
const LONGEST_MESSAGE: usize = 1000;

/// Maximum number of events of one kind within [`MOST_WITHIN`]. A node has up to 110 pods by default, and all of them
/// can lose a shared NIC at once.
const MOST: usize = 120;
const MOST_WITHIN: Duration = Duration::from_secs(10 * 60);

/// Event about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// Name of the pod.
    pub pod: &'a PodName,
    /// UID, which distinguishes pods with the same name. `kubectl describe pod` does not show an event without a UID.
    pub uid: Option<&'a str>,
    /// Name of the node.
    pub node: &'a str,
    /// Reason in one word.
    pub reason: &'a str,
    /// True for the type `Warning`, false for `Normal`.
    pub is_warning: bool,
    /// Message.
    pub message: &'a str,
}

impl Event<'_> {
    /// Writes the event, and returns the written object.
    ///
    /// # Errors
    /// The API server refuses the event or does not answer.
    pub async fn write(&self, client: &Client) -> Result<Value, RequestError> {
        let path = format!("/api/v1/namespaces/{}/events", self.pod.namespace);
        let object = self.object(SystemTime::now());
        client.ask(Method::POST, &path, Some(&object)).await
    }

    fn object(&self, now: SystemTime) -> Value {
        let PodName { namespace, name } = self.pod;
        let now = rfc3339(now);
        let mut pod = json!({
            "kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": name,
        });
        if let Some(uid) = self.uid {
            pod["uid"] = uid.into();
        }
        let message = one_line(self.message);
        let end = message.floor_char_boundary(LONGEST_MESSAGE);
        json!({
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": {"generateName": format!("{name}."), "namespace": namespace},
            "involvedObject": pod,
            "reason": self.reason,
            "message": message[..end],
            "type": if self.is_warning { "Warning" } else { "Normal" },
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": AGENT, "host": self.node},
            "reportingComponent": AGENT,
            "reportingInstance": self.node,
        })
    }
}

/// Formats a time as Kubernetes does: `2026-01-31T10:00:00Z`.
pub fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

/// Times of recently written events.
#[derive(Debug, Default)]
pub struct Budget(VecDeque<Instant>);

impl Budget {
    /// Returns the delay until the daemon may write another event. Zero means now.
    pub fn room_in(&mut self, now: Instant) -> Duration {
        let is_old = |at: &Instant| now.saturating_duration_since(*at) >= MOST_WITHIN;
        while self.0.front().is_some_and(is_old) {
            self.0.pop_front();
        }
        match (self.0.len() < MOST, self.0.front()) {
            (false, Some(first)) => (*first + MOST_WITHIN).saturating_duration_since(now),
            _ => Duration::ZERO,
        }
    }

    /// Counts a written event.
    pub fn spend(&mut self, now: Instant) {
        self.0.push_back(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn times_are_written_as_kubernetes_writes_them() {
        for (seconds, written) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_772_323_200, "2026-03-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), written);
        }
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let pod = PodName {
            namespace: "default".into(),
            name: "a".into(),
        };
        for (message, length) in [
            ("short".to_owned(), 5..=5),
            ("\u{e9}".repeat(2000), 999..=1000),
        ] {
            let event = Event {
                pod: &pod,
                uid: None,
                node: "rdma-1",
                reason: "RdmaRailLost",
                is_warning: true,
                message: &message,
            };
            let object = event.object(UNIX_EPOCH);
            let written = object["message"].as_str().expect("a message");
            assert!(length.contains(&written.len()), "{}", written.len());
            // `uid` must be absent: no pod has an empty UID
            assert!(object["involvedObject"].get("uid").is_none());
        }
    }

    #[test]
    fn a_storm_is_bounded() {
        let mut budget = Budget::default();
        let start = Instant::now();
        for _ in 0..MOST {
            assert_eq!(budget.room_in(start), Duration::ZERO);
            budget.spend(start);
        }
        let later = start + Duration::from_secs(60);
        assert_eq!(budget.room_in(later), MOST_WITHIN - Duration::from_secs(60));
        assert_eq!(budget.room_in(start + MOST_WITHIN), Duration::ZERO);
    }
}
