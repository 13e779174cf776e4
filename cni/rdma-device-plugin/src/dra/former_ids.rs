// SPDX-License-Identifier: Apache-2.0
//! Ids of a resource that the device plugin gave, before claims had the resource.
//!
//! Kubelet (1.37.0) takes a container's resource for a device plugin's as long as it counts ids of it as allocated,
//! also where the container has a claim. Five minutes after the device plugin's end it refuses the container then:
//! `endpoint not found in cache for a registered resource`. What a pod had that has ended, it takes off its count only
//! when a pod with ids comes, or when somebody asks pod-resources for its list (`isDevicePluginResource()`,
//! `callPreStartContainerIfNeeded()` and `UpdateAllocatedDevices()` in `pkg/kubelet/cm/devicemanager/manager.go`). At its
//! start it reads its count from a file that may be older than the pod's end. So it is asked here.

use super::pool;
use crate::{kubelet::PluginContext, node::Node};
use kubelet_api::pod_resources::{self, AskError, v1::PodResources};
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

/// Kubelet answers at once, or something is wrong with it.
const LIMIT: Duration = Duration::from_secs(2);

/// Kubelet is asked so often while a pod has ids.
const PAUSE: Duration = Duration::from_secs(10);

/// Kubelet drops nothing before it has read its pods from all of their sources (`sourcesReady`), and tells nobody when
/// it has.
const START: Duration = Duration::from_secs(60);

/// Has kubelet drop the ids of pods that have ended.
#[derive(Clone, Debug)]
pub struct FormerIds {
    pod_resources: PathBuf,
    node: watch::Receiver<Arc<Node>>,
    registered: Arc<Notify>,
}

impl FormerIds {
    /// What kubelet tells by `context`.
    pub(super) fn new(context: &PluginContext) -> Self {
        Self {
            pod_resources: context.pod_resources.clone(),
            node: context.node.clone(),
            registered: Arc::default(),
        }
    }

    /// Those of the kubelet that answers at `pod_resources`.
    #[cfg(test)]
    pub(super) fn of(pod_resources: &std::path::Path, node: watch::Receiver<Arc<Node>>) -> Self {
        Self {
            pod_resources: pod_resources.to_owned(),
            node,
            registered: Arc::default(),
        }
    }

    /// Is told when kubelet has registered the driver: one of both was started.
    pub(super) fn registered(&self) -> Arc<Notify> {
        self.registered.clone()
    }

    /// Kubelet drops what it can. Says whether a pod has ids yet.
    ///
    /// # Errors
    /// Kubelet is not there, or answers nothing.
    pub(super) async fn drop_ended(&self) -> Result<bool, AskError> {
        let pods = pod_resources::all(&self.pod_resources, LIMIT).await?;
        let node = self.node.borrow();
        let by_claims: Vec<_> = pool::offers(&node).map(|it| it.name.as_str()).collect();
        Ok(have_ids(&pods, &by_claims))
    }

    /// The same after each registration, and for as long as a pod has ids; never comes back.
    pub(super) async fn follow(&self) {
        loop {
            self.registered.notified().await;
            let started = Instant::now();
            loop {
                let has_ids = self.drop_ended().await.unwrap_or_else(|error| {
                    log::debug!("ids of pods that have ended: {error}");
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

/// Whether one of `pods` has ids of one of `resources`.
fn have_ids(pods: &[PodResources], resources: &[&str]) -> bool {
    let containers = pods.iter().flat_map(|pod| &pod.containers);
    let mut devices = containers.flat_map(|container| &container.devices);
    devices.any(|it| resources.contains(&it.resource_name.as_str()))
}
