// SPDX-License-Identifier: Apache-2.0
//! Access to the API server with the service account token of this process's pod. Only opt-in features send requests,
//! such as claims, events, the node's condition, the deletion of refused pods and the fabric watch.

use kubernetes_api::{Access, AccessError, Client};
use node_state::{log_once::LogOnce, node::Node};
use std::{fmt::Display, path::Path, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

/// User agent of the daemon's requests.
pub const AGENT: &str = "rdma-device-plugin";

/// Time limit of a request.
pub const LIMIT: Duration = Duration::from_secs(10);

/// Client of the API server, and the node that the client's token names.
#[derive(Clone, Debug)]
pub struct Api {
    /// Client for the requests.
    pub client: Client,
    /// Name of the node.
    pub node: String,
    /// UID of the node. `None`: the token does not have the UID.
    pub node_uid: Option<String>,
}

impl Api {
    /// Reads the token in `directory`.
    ///
    /// # Errors
    /// The environment is not a pod's environment, the directory has no token, or the token names no node.
    pub fn new(directory: &Path) -> Result<Self, AccessError> {
        let access = Access::of_pod(directory)?;
        let identity = access.identity()?;
        Ok(Self {
            node: identity.node()?.to_owned(),
            node_uid: identity.node_uid,
            client: Client::new(access, AGENT, LIMIT),
        })
    }
}

/// First and longest delay after a failure.
const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Failures of one task's requests. The delay before the next attempt doubles with each failure.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// Delay after the last failure. `None`: the last attempt did not fail.
    delay: Option<Duration>,
    logged: LogOnce,
}

impl Failures {
    /// Records a failure. Calls `log` with the error's text if it differs from the last failure's text. Returns the
    /// delay before the next attempt.
    pub(crate) fn add(&mut self, error: impl Display, log: impl FnOnce(&str)) -> Duration {
        let line = error.to_string();
        if self.logged.is_news(&line) {
            log(&line);
        }
        let delay = self.delay.map_or(AGAIN[0], |it| (it * 2).min(AGAIN[1]));
        self.delay = Some(delay);
        delay
    }

    /// Records a success. Returns true if the last attempt failed.
    pub(crate) fn end(&mut self) -> bool {
        std::mem::take(self).logged.ends()
    }
}

/// Waits for `time`, then returns true. Returns false as soon as the sender of `node` is dropped.
pub(crate) async fn is_followed_for(node: &mut watch::Receiver<Arc<Node>>, time: Duration) -> bool {
    let end = Instant::now() + time;
    loop {
        match timeout_at(end, node.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return false,
            Err(_) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_up_to_a_minute_and_each_failure_is_logged_once() {
        let mut failures = Failures::default();
        assert!(!failures.end(), "nothing has failed");
        for _ in 0..2 {
            let mut lines = vec![];
            let delays =
                ["away", "away", "403", "403", "403", "403", "away", "away"].map(|error| {
                    let delay = failures.add(error, |line| lines.push(line.to_owned()));
                    delay.as_secs()
                });
            assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
            assert_eq!(lines, ["away", "403", "away"]);
            assert!(failures.end());
        }
    }
}
