// SPDX-License-Identifier: Apache-2.0
//! Attempts of a task that keeps an object of the API server or a file up to date with the node. The task decides what
//! it writes. [`Retry`] decides which failures the task logs, and when the next attempt is.

use node_state::{log_once::LogOnce, node::Node};
use std::{
    fmt::Display,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::watch,
    time::{self, timeout, timeout_at},
};

/// Interval of attempts while no write is due. Each change of the node starts an attempt earlier.
pub(crate) const REST: Duration = Duration::from_secs(24 * 3600);

/// First and longest pause after a failure.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Failures of one task's attempts. The pause before the next attempt doubles with each failure.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    /// Pause after the last failure, and its end. `None`: the last attempt did not fail.
    pause: Option<(Duration, Instant)>,
    logged: LogOnce,
}

impl Retry {
    /// Records a failure at `now`. Calls `log` with the error's text if it differs from the last failure's text. Returns
    /// the pause before the next attempt.
    pub(crate) fn fails(
        &mut self,
        error: impl Display,
        now: Instant,
        log: impl FnOnce(&str),
    ) -> Duration {
        let line = error.to_string();
        if self.logged.is_news(&line) {
            log(&line);
        }
        let [first, longest] = PAUSES;
        let pause = self.pause.map_or(first, |(it, _)| (it * 2).min(longest));
        self.pause = Some((pause, now + pause));
        pause
    }

    /// Records a success. Returns true if the last attempt failed.
    pub(crate) fn ends(&mut self) -> bool {
        std::mem::take(self).logged.ends()
    }

    /// Returns true if no pause lasts at `now`.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.pause.is_none_or(|(_, end)| now >= end)
    }

    /// Waits after the attempt with the result `done`. After a success, waits for the time in `done`, or until `node`
    /// changes and the time `together` has passed, in which the node may change further. After a failure, waits for a
    /// pause of [`Self::fails`]. Returns false as soon as the sender of `node` is dropped.
    pub(crate) async fn rests(
        &mut self,
        node: &mut watch::Receiver<Arc<Node>>,
        done: Result<Duration, impl Display>,
        together: Duration,
        log: impl FnOnce(&str),
    ) -> bool {
        let pause = match done {
            Ok(rest) => {
                self.ends();
                match timeout(rest, node.changed()).await {
                    Ok(Ok(())) => together,
                    Ok(Err(_)) => return false,
                    Err(_) => return true,
                }
            }
            Err(error) => self.fails(error, Instant::now(), log),
        };
        is_followed_for(node, pause).await
    }
}

/// Waits for `time`, then returns true. Returns false as soon as the sender of `node` is dropped.
pub(crate) async fn is_followed_for(node: &mut watch::Receiver<Arc<Node>>, time: Duration) -> bool {
    let end = time::Instant::now() + time;
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
        let (mut retry, now) = (Retry::default(), Instant::now());
        assert!(!retry.ends(), "nothing has failed");
        for _ in 0..2 {
            let mut lines = vec![];
            let pauses =
                ["away", "away", "403", "403", "403", "403", "away", "away"].map(|error| {
                    let pause = retry.fails(error, now, |line| lines.push(line.to_owned()));
                    pause.as_secs()
                });
            assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
            assert_eq!(lines, ["away", "403", "away"]);
            let after = |seconds| now + Duration::from_secs(seconds);
            assert!(!retry.is_over(after(59)) && retry.is_over(after(60)));
            assert!(retry.ends() && retry.is_over(now));
        }
    }
}
