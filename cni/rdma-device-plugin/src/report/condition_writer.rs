// SPDX-License-Identifier: Apache-2.0
//! Keeps the node's condition up to date. The condition stays while a daemon is replaced, and the next daemon updates
//! it. The daemon has only the right to patch the status of its own node. It therefore reads the status by an empty
//! patch.

use super::{
    condition::{self, Condition},
    event::rfc3339,
};
use crate::{api::Api, retry::Retry};
use kubernetes_api::{Method, RequestError};
use node_state::node::Node;
use serde_json::{Value, json};
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tokio::sync::watch;

/// Writes the condition of one node.
#[derive(Debug)]
pub struct ConditionWriter {
    node: watch::Receiver<Arc<Node>>,
    account: PathBuf,
    /// Condition in the API server. `None`: the daemon has not read it yet.
    written: Option<Written>,
    retry: Retry,
}

#[derive(Debug)]
struct Written {
    /// Condition of the node. `None`: the node does not have it.
    condition: Option<Condition>,
    at: Instant,
    /// Time of the last change of the condition's status.
    transition: String,
}

impl ConditionWriter {
    /// Returns a writer that follows `node`. The directory `account` contains the service account's token.
    pub fn new(node: watch::Receiver<Arc<Node>>, account: PathBuf) -> Self {
        Self {
            node,
            account,
            written: None,
            retry: Retry::default(),
        }
    }

    /// Runs until the sender of `node` is dropped.
    pub async fn run(mut self) {
        loop {
            let condition = Condition::of(&self.node.borrow_and_update());
            let kept = self.keep(&condition).await;
            let name = condition::TYPE;
            if kept.is_ok() && self.retry.ends() {
                log::info!("the node's condition {name} is written again");
            }
            let log =
                |line: &str| log::error!("the node's condition {name} is not written: {line}");
            let rested = self.retry.rests(&mut self.node, kept, Duration::ZERO, log);
            if !rested.await {
                return;
            }
        }
    }

    /// Writes `condition` if a write is due. Returns the delay until the next write.
    async fn keep(&mut self, condition: &Condition) -> Result<Duration, RequestError> {
        let due = match &self.written {
            Some(written) => written.due(condition),
            None => {
                let api = Api::new(&self.account)?;
                let read = patch(&api, &json!({})).await?;
                self.written.insert(Written::read(&read)).due(condition)
            }
        };
        if !due.is_zero() {
            return Ok(due);
        }
        let now = rfc3339(SystemTime::now());
        let before = self.written.as_ref();
        let transition = before.map_or_else(|| now.clone(), |it| it.since(condition, &now));
        let before = before.and_then(|it| it.condition.as_ref());
        let api = Api::new(&self.account)?;
        patch(&api, &condition.patch(&now, &transition)).await?;
        if before.is_none_or(|before| before != condition) {
            log::info!(
                "the node's condition {} is {}: {}",
                condition::TYPE,
                condition.is_missing,
                condition.message
            );
        }
        let written = Written {
            condition: Some(condition.clone()),
            at: Instant::now(),
            transition,
        };
        Ok(self.written.insert(written).due(condition))
    }
}

impl Written {
    /// Parses the condition of a node object of the API server. If the condition's time is invalid or in the future,
    /// uses the present time.
    fn read(node: &Value) -> Self {
        let found = Condition::read(node);
        let age = found.as_ref().and_then(|(_, heartbeat, _)| {
            let at = humantime::parse_rfc3339(heartbeat).ok()?;
            SystemTime::now().duration_since(at).ok()
        });
        let now = Instant::now();
        Self {
            at: age.and_then(|age| now.checked_sub(age)).unwrap_or(now),
            transition: found.as_ref().map_or("", |it| it.2).to_owned(),
            condition: found.map(|it| it.0),
        }
    }

    /// Returns the time since which the node's condition has the status of `condition`. Replaces an invalid time: the
    /// API server would refuse a patch with it.
    fn since(&self, condition: &Condition, now: &str) -> String {
        let before = self.condition.as_ref();
        let is_same = before.is_some_and(|it| it.is_missing == condition.is_missing);
        let is_time = humantime::parse_rfc3339(&self.transition).is_ok();
        let since = if is_same && is_time {
            &self.transition
        } else {
            now
        };
        since.to_owned()
    }

    fn due(&self, condition: &Condition) -> Duration {
        let written = self.condition.as_ref().map(|it| (it, self.at));
        condition::due(written, condition, Instant::now())
    }
}

/// Patches the node's status. Returns the node object from the API server's answer.
async fn patch(api: &Api, patch: &Value) -> Result<Value, RequestError> {
    let path = format!("/api/v1/nodes/{}/status", api.node);
    api.client.ask(Method::PATCH, &path, Some(patch)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_transition_stays_if_it_is_one() {
        let condition = |is_missing: bool| Condition {
            is_missing,
            reason: "DeviceGone".into(),
            message: "0000:5e:00.0".into(),
        };
        let (missing, now) = (condition(true), "2026-01-31T10:05:00Z");
        for (found, wanted, since) in [
            ("2026-01-31T10:00:00Z", true, "2026-01-31T10:00:00Z"),
            ("2026-01-31T10:00:00Z", false, now),
            ("", true, now),
            ("yesterday", true, now),
        ] {
            let written = Written::read(&missing.patch("2026-01-31T10:00:00Z", found));
            assert_eq!(written.since(&condition(wanted), now), since, "{found:?}");
        }
        let mut node = missing.patch(now, now);
        let own = &mut node["status"]["conditions"][0];
        own["lastTransitionTime"] = Value::Null;
        assert_eq!(Written::read(&node).since(&missing, now), now);
        assert_eq!(Written::read(&json!({})).since(&missing, now), now);
    }
}
