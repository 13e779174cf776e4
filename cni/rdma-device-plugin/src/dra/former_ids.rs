// SPDX-License-Identifier: Apache-2.0
//! Ids that the device plugin allocated before the configuration assigned their resource to claims.
//!
//! While kubelet (1.37.0) counts ids of a resource as allocated, it handles each container's request for the resource
//! as a request to the device plugin, even if the pod has a claim. Five minutes after the end of the device plugin,
//! kubelet begins to refuse such containers: `endpoint not found in cache for a registered resource`.
//!
//! Kubelet drops the ids of ended pods only when a pod with ids starts, or when a client lists pod-resources
//! (`isDevicePluginResource()`, `callPreStartContainerIfNeeded()` and `UpdateAllocatedDevices()` in
//! `pkg/kubelet/cm/devicemanager/manager.go`). When kubelet starts, it reads the allocated ids from a file, which can
//! still contain ids of ended pods. The daemon therefore lists pod-resources.

use crate::kubelet::PluginContext;
use kubelet_api::pod_resources::{self, AskError, v1::PodResources};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::Notify, time::sleep};

/// Time limit for kubelet's answer.
const LIMIT: Duration = Duration::from_secs(2);

/// Interval of requests to kubelet.
const PAUSE: Duration = Duration::from_secs(10);

/// Time after kubelet's start in which kubelet may not drop ids yet, because it has not read its pods from all sources
/// (`sourcesReady`). Kubelet does not report the end of this time.
const START: Duration = Duration::from_secs(60);

/// Makes kubelet drop the ids of ended pods.
#[derive(Clone)]
pub struct FormerIds {
    context: Arc<PluginContext>,
    registered: Arc<Notify>,
}

impl FormerIds {
    pub(super) fn new(context: &Arc<PluginContext>) -> Self {
        Self {
            context: context.clone(),
            registered: Arc::default(),
        }
    }

    /// Returns the notification that kubelet has registered the driver. Kubelet registers the driver when kubelet or
    /// the driver starts.
    pub(super) fn registered(&self) -> Arc<Notify> {
        self.registered.clone()
    }

    /// Makes kubelet drop the ids of ended pods. Returns true if a pod still has ids of a resource that is now
    /// allocated by claims.
    ///
    /// # Errors
    /// Kubelet is absent, or does not answer.
    pub(super) async fn drop_ended(&self) -> Result<bool, AskError> {
        let socket = self.context.arguments.pod_resources();
        let pods = pod_resources::all(&socket, LIMIT).await?;
        let node = self.context.node.borrow();
        let by_claims: Vec<_> = node.by_claims().map(|it| it.name.as_str()).collect();
        Ok(have_ids(&pods, &by_claims))
    }

    /// After each registration, calls [`drop_ended`](Self::drop_ended) repeatedly for at least the time [`START`],
    /// until a call returns false. Never returns.
    pub(super) async fn follow(&self) {
        loop {
            self.registered.notified().await;
            let started = Instant::now();
            loop {
                let has_ids = self.drop_ended().await.unwrap_or_else(|error| {
                    log::debug!("cannot make kubelet drop the ids of ended pods: {error}");
                    true
                });
                if !has_ids && started.elapsed() > START {
                    break;
                }
                sleep(PAUSE).await;
            }
        }
    }
}

/// Returns true if one of `pods` has ids of one of `resources`.
fn have_ids(pods: &[PodResources], resources: &[&str]) -> bool {
    let containers = pods.iter().flat_map(|pod| &pod.containers);
    let mut devices = containers.flat_map(|container| &container.devices);
    devices.any(|it| resources.contains(&it.resource_name.as_str()))
}
