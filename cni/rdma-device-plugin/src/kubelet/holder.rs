//! Whose the devices of a container are, for the log: kubelet says it in none of a device plugin's
//! calls, but in pod-resources.

use crate::conf::ResourceName;
use kubelet_api::pod_resources::{
    self,
    v1::{ContainerResources, PodResources},
};
use std::{path::PathBuf, time::Duration};

/// Nobody waits for the answer.
const LIMIT: Duration = Duration::from_secs(2);

/// Says which container has `ids` of `resource`, as soon as kubelet has answered; nothing where it
/// does not.
pub(super) fn tell(socket: PathBuf, resource: ResourceName, ids: Vec<String>, verdict: String) {
    tokio::spawn(async move {
        match pod_resources::all(&socket, LIMIT).await {
            Ok(pods) => {
                let holder = holder(&pods, &resource, &ids);
                let holder = holder.unwrap_or_else(|| "a pod that kubelet does not name".into());
                log::info!("{resource}: {} of {holder}: {verdict}", ids.join(", "));
            }
            Err(error) => log::debug!("{resource}: whose {} is: {error}", ids.join(", ")),
        }
    });
}

/// `default/trainer-0, container main`
fn holder(pods: &[PodResources], resource: &ResourceName, ids: &[String]) -> Option<String> {
    pods.iter().find_map(|pod| {
        let has_all = |container: &&ContainerResources| {
            let own = container.devices.iter();
            let own = own.filter(|it| it.resource_name == resource.as_str());
            let own: Vec<&String> = own.flat_map(|it| &it.device_ids).collect();
            !ids.is_empty() && ids.iter().all(|id| own.contains(&id))
        };
        let container = pod.containers.iter().find(has_all)?;
        Some(format!(
            "{}/{}, container {}",
            pod.namespace, pod.name, container.name
        ))
    })
}
