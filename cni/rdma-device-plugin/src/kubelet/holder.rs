// SPDX-License-Identifier: Apache-2.0
//! Whose the devices of a container are: kubelet says it in none of a device plugin's calls, but in
//! pod-resources.

use crate::conf::ResourceName;
use kubelet_api::pod_resources::{
    self, AskError,
    v1::{ContainerResources, PodResources},
};
use std::{fmt, path::Path, time::Duration};

/// Kubelet is there: it waits for an answer itself, for 30 s
/// (`KubeletPreStartContainerRPCTimeoutInSecs`).
const LIMIT: Duration = Duration::from_secs(5);

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holder {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
    /// What kubelet allocated to it: resources, each with an id. Empty where that was not asked.
    pub(super) allocated: Vec<(String, String)>,
}

/// `default/trainer-0, container main`
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            namespace,
            pod,
            container,
            ..
        } = self;
        write!(f, "{namespace}/{pod}, container {container}")
    }
}

/// Which container has `ids` of `resource`; none: one that kubelet does not name, as an init
/// container.
pub(super) async fn of(
    socket: &Path,
    resource: &ResourceName,
    ids: &[String],
) -> Result<Option<Holder>, AskError> {
    let pods = pod_resources::all_patiently(socket, LIMIT).await?;
    Ok(holder(&pods, resource, ids))
}

/// Says in the log whose the devices are, where kubelet has told it.
pub(super) fn tell(
    resource: &ResourceName,
    ids: &[String],
    asked: &Result<Option<Holder>, AskError>,
    verdict: &str,
) {
    let ids = ids.join(", ");
    match asked {
        Ok(Some(holder)) => log::info!("{resource}: {ids} of {holder}: {verdict}"),
        Ok(None) => {
            log::info!("{resource}: {ids} of a pod that kubelet does not name: {verdict}");
        }
        Err(error) => log::debug!("{resource}: whose {ids} is: {error}"),
    }
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
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            container: container.name.clone(),
        })
    })
}
