// SPDX-License-Identifier: Apache-2.0
//! Finds the container to which kubelet allocated devices. Kubelet's call to a device plugin does not name the
//! container. Only kubelet's pod-resources API does.

use crate::refused::PodName;
use daemon_conf::ResourceName;
use kubelet_api::pod_resources::{
    self, AskError,
    v1::{ContainerResources, PodResources},
};
use std::{fmt, path::Path, time::Duration};

/// Time limit for kubelet's answer, for all attempts together. Kubelet waits 30 s for the daemon's answer
/// (`KubeletPreStartContainerRPCTimeoutInSecs`).
const LIMIT: Duration = Duration::from_secs(5);

/// A container that kubelet reports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodContainer {
    pub(crate) pod: PodName,
    pub(crate) name: String,
}

impl PodContainer {
    pub(crate) fn new(pod: &PodResources, container: &ContainerResources) -> Self {
        Self {
            pod: PodName {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
            },
            name: container.name.clone(),
        }
    }
}

/// Formats a container as `default/trainer-0, container main`.
impl fmt::Display for PodContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, container {}", self.pod, self.name)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) container: PodContainer,
    /// Kubelet's allocations to the container, as pairs of resource and id.
    pub(super) allocated: Vec<(String, String)>,
}

/// Returns the container that has all `ids` of `resource`. Returns `None` if kubelet does not report the container, for
/// example an init container.
pub(super) async fn of(
    socket: &Path,
    resource: &ResourceName,
    ids: &[String],
) -> Result<Option<Holder>, AskError> {
    let pods = pod_resources::all_patiently(socket, LIMIT).await?;
    Ok(holder(&pods, resource, ids))
}

fn holder(pods: &[PodResources], resource: &ResourceName, ids: &[String]) -> Option<Holder> {
    pods.iter().find_map(|pod| {
        let has_all = |container: &&ContainerResources| {
            let own = container.devices.iter();
            let own = own.filter(|it| it.resource_name == resource.as_str());
            let own: Vec<&String> = own.flat_map(|it| &it.device_ids).collect();
            !ids.is_empty() && ids.iter().all(|id| own.contains(&id))
        };
        let container = pod.containers.iter().find(has_all)?;
        let allocated = container.devices.iter().flat_map(|it| {
            let ids = it.device_ids.iter();
            ids.map(|id| (it.resource_name.clone(), id.clone()))
        });
        Some(Holder {
            allocated: allocated.collect(),
            container: PodContainer::new(pod, container),
        })
    })
}
