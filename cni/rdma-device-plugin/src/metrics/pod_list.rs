// SPDX-License-Identifier: Apache-2.0
//! Kubelet's list of pods for scrapes. For any number of scrapes, the daemon has at most one request in progress and
//! sends at most one request a second. Kubelet has one rate limit for all its clients together
//! (`pkg/kubelet/apis/grpc/ratelimit.go`), and `rdma-cni` is also a client.

use kubelet_api::pod_resources::{self, v1::PodResources};
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Mutex;

/// Time limit for each source: kubelet, counters, reports, IPv6 addresses. Prometheus waits 10 s.
pub(super) const LIMIT: Duration = Duration::from_secs(2);

/// Time for which the daemon keeps kubelet's answer, or the fact that kubelet did not answer.
const KEPT: Duration = Duration::from_secs(1);

/// Kubelet's answer. `None`: kubelet did not answer, or answered with an error.
type Answer = Option<Arc<Vec<PodResources>>>;

pub(super) struct PodList {
    socket: PathBuf,
    /// Last answer, and the time when it arrived.
    last: Arc<Mutex<Option<(Instant, Answer)>>>,
}

impl PodList {
    pub(super) fn new(socket: PathBuf) -> Self {
        Self {
            socket,
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
        let socket = self.socket.clone();
        // use a separate task: the request continues if this client disconnects, and the next client gets the answer
        let answer = tokio::spawn(async move {
            let answer = match pod_resources::all(&socket, LIMIT).await {
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
