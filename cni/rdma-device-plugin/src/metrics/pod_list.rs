// SPDX-License-Identifier: Apache-2.0
//! Kubelet's list of pods for scrapes: one question at a time, and one a second, however many clients ask and go away
//! meanwhile. Kubelet limits the questions of all its clients together, and ADD of every pod needs one
//! (`pkg/kubelet/apis/grpc/ratelimit.go`).

use kubelet_api::pod_resources::{self, v1::PodResources};
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Mutex;

/// How long an answer is kept, as is that there was none.
const KEPT: Duration = Duration::from_secs(1);

/// What kubelet answered; none: nothing, or an error.
type Answer = Option<Arc<Vec<PodResources>>>;

/// The list, as kubelet answered last.
pub(super) struct PodList {
    socket: PathBuf,
    /// How long kubelet may take.
    limit: Duration,
    /// The last answer, with its time.
    last: Arc<Mutex<Option<(Instant, Answer)>>>,
}

impl PodList {
    pub(super) fn new(socket: PathBuf, limit: Duration) -> Self {
        Self {
            socket,
            limit,
            last: Arc::default(),
        }
    }

    /// What kubelet answers, or answered within the last second. A question that is under way is waited for.
    pub(super) async fn get(&self) -> Answer {
        let mut last = self.last.clone().lock_owned().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < KEPT
        {
            return answer.clone();
        }
        let (socket, limit) = (self.socket.clone(), self.limit);
        // the question goes on when this client goes away, and its answer is the next client's
        let asked = tokio::spawn(async move {
            let answer = match pod_resources::all(&socket, limit).await {
                Ok(pods) => Some(Arc::new(pods)),
                Err(error) => {
                    log::debug!("who has which device is not known: {error}");
                    None
                }
            };
            *last = Some((Instant::now(), answer.clone()));
            answer
        });
        asked.await.ok().flatten()
    }
}
