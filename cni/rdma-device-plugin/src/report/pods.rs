// SPDX-License-Identifier: Apache-2.0
//! Pods and their devices, from the records of `rdma-cni` and from kubelet's list. Only the records have interfaces.
//! Only kubelet's list has pods without a record, such as pods with `hostNetwork`.

use super::rails::{PodDevice, PodDevices, PodKey};
use crate::{chain::sandbox, metrics::held, refused::PodName};
use attachments::{Store, pods};
use kubelet_api::pod_resources::{self, AskError};
use node_state::node::Node;
use rdma_netns::{DeviceAddress, Kernel, Linux};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Time limit for kubelet's answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Phase of a record after ADD has attached all devices.
const ATTACHED: &str = "attached";

/// Paths of the sources about pods.
#[derive(Clone, Debug)]
pub struct Paths {
    /// State directory: `/var/lib/cni/rdma-cni`.
    pub state_dir: PathBuf,
    /// Kubelet's pod-resources socket.
    pub pod_resources: PathBuf,
    /// Cache of libcni: `/var/lib/cni/results`.
    pub cni_cache: PathBuf,
}

/// Returns the pods that have devices of `node`.
///
/// # Errors
/// Kubelet does not answer at present. If kubelet's socket does not exist, this is no error.
pub async fn with_devices(paths: &Paths, node: &Arc<Node>) -> Result<Vec<PodDevices>, AskError> {
    let resources = match pod_resources::all(&paths.pod_resources, LIMIT).await {
        Ok(pods) => pods,
        Err(error) if error.passes() => return Err(error),
        Err(error) => {
            log::debug!("cannot read the devices of pods without a record: {error}");
            vec![]
        }
    };
    let (paths, node) = (paths.clone(), node.clone());
    let pods = tokio::task::spawn_blocking(move || {
        let mut pods: BTreeMap<PodName, BTreeMap<DeviceAddress, PodDevice>> = BTreeMap::new();
        let offers = node.advertised().map(|it| (it.name.as_str(), Some(it)));
        // the node has no offer of a resource whose devices are all gone
        let lost = node.gone.keys().map(|name| (name.as_str(), None));
        let lost = lost.filter(|(name, _)| node.offer(name).is_none());
        let held = held(&resources, offers.chain(lost), &paths.state_dir);
        for (address, holders) in held.holders {
            for holder in holders {
                let pod = pods.entry(holder.container.pod).or_default();
                let device = pod.entry(address.clone()).or_default();
                device.resources.insert(holder.resource);
            }
        }
        for (name, address, interface) in recorded(&paths.state_dir) {
            let pod = pods.entry(name).or_default();
            pod.entry(address).or_default().interface = Some(interface);
        }
        let uids = sandbox::uids(&paths.cni_cache);
        let seen = pods.into_iter().map(|(name, devices)| {
            let uid = uids.get(&name).cloned();
            let pod = PodKey { name, uid };
            PodDevices { pod, devices }
        });
        seen.collect()
    });
    Ok(pods.await.unwrap_or_default())
}

/// Returns each rail in the records of complete attachments as pod, device address and interface.
fn recorded(state_dir: &Path) -> Vec<(PodName, DeviceAddress, String)> {
    let boot_id = Linux::new().boot_id().unwrap_or_default();
    let records = pods::rails(&Store::new(state_dir), &boot_id);
    let attached = records.into_iter().filter(|it| it.phase == ATTACHED);
    let rails = attached.filter_map(|record| {
        let (namespace, name) = record.pod.split_once('/')?;
        let pod = PodName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let devices = record.rails.into_iter().flat_map(|rail| {
            let interface = rail.name;
            let devices = rail.devices.into_iter();
            devices.map(move |address| (address, interface.clone()))
        });
        Some(devices.map(move |(address, interface)| (pod.clone(), address, interface)))
    });
    rails.flatten().collect()
}

/// Returns the UID of the pod `name` from libcni's cache. Returns `None` if the cache does not contain the pod.
pub async fn uid(cni_cache: &Path, name: &PodName) -> Option<String> {
    let cache = cni_cache.to_owned();
    let uids = tokio::task::spawn_blocking(move || sandbox::uids(&cache)).await;
    uids.ok()?.remove(name)
}
