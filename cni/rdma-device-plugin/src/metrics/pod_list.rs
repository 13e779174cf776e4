// SPDX-License-Identifier: Apache-2.0
//! Kubelet's list of pods for scrapes. The daemon makes at most one request at a time and one request a second, for any
//! number of clients. Kubelet limits the requests of all its clients together, and each pod's ADD needs one
//! (`pkg/kubelet/apis/grpc/ratelimit.go`).

use kubelet_api::pod_resources::{self, v1::PodResources};
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Mutex;

/// Time for which an answer or its absence is kept.
const KEPT: Duration = Duration::from_secs(1);

/// Kubelet's answer; `None`: none, or an error.
type Answer = Option<Arc<Vec<PodResources>>>;

/// The last list of kubelet.
pub(super) struct PodList {
    socket: PathBuf,
    /// Time limit of kubelet's answer.
    limit: Duration,
    /// Last answer, with its time.
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

    /// Returns kubelet's answer, which may be up to a second old. Waits for a request in progress.
    pub(super) async fn get(&self) -> Answer {
        let mut last = self.last.clone().lock_owned().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < KEPT
        {
            return answer.clone();
        }
        let (socket, limit) = (self.socket.clone(), self.limit);
        // the request continues when this client disconnects, and its answer serves the next client
        let answer = tokio::spawn(async move {
            let answer = match pod_resources::all(&socket, limit).await {
                Ok(pods) => Some(Arc::new(pods)),
                Err(error) => {
                    log::debug!("cannot read the containers of devices: {error}");
                    None
                }
            };
            *last = Some((Instant::now(), answer.clone()));
            answer
        });
        answer.await.ok().flatten()
    }
}
