// SPDX-License-Identifier: Apache-2.0
//! Finds the containers of each device, and counts the allocated ids of each resource.

use crate::kubelet::PodContainer;
use kubelet_api::pod_resources::v1::PodResources;
use offer::Offer;
use rdma_netns::DeviceAddress;
use rdma_resources::{Grants, Sharing};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    pub(crate) resource: String,
    pub(crate) container: PodContainer,
}

/// Kubelet's allocations of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Number of allocated ids, by resource.
    pub(super) allocated: BTreeMap<String, u64>,
    /// Containers that have each device.
    pub(crate) holders: BTreeMap<DeviceAddress, BTreeSet<Holder>>,
    /// Exclusive devices that only one container has, each with this container.
    pub(super) only: BTreeMap<DeviceAddress, Holder>,
}

/// Counts the ids of the resources in `offers` that kubelet has allocated, and finds their containers. An offer is
/// `None` if the resource is no longer offered. The grants in `state_dir` show the devices of each id. For an id
/// without a grant, uses the id's present devices.
///
/// Reads a file for each allocated id. The caller must therefore not be the thread that answers kubelet.
pub(crate) fn held<'a>(
    pods: &[PodResources],
    offers: impl IntoIterator<Item = (&'a str, Option<&'a Offer>)>,
    state_dir: &Path,
) -> Held {
    let grants = Grants::new(state_dir);
    let mut held = Held::default();
    let mut shared = BTreeSet::new();
    for (resource, offer) in offers {
        let is_shared = offer.is_none_or(|it| it.sharing == Sharing::Shared);
        let devices_of = |id: &str| -> Vec<DeviceAddress> {
            if let Ok(Some(grant)) = grants.read(resource, id) {
                return grant.devices.into_iter().map(|it| it.address).collect();
            }
            let present = offer.and_then(|offer| {
                let id = offer.ids.iter().find(|it| it.id == id)?;
                let devices = offer.devices_at(&id.devices);
                Some(devices.map(|it| it.address.clone()).collect())
            });
            present.unwrap_or_default()
        };
        let mut ids = BTreeSet::new();
        for pod in pods {
            for container in &pod.containers {
                let own = container.devices.iter();
                // an id can be in several elements of `devices`, because kubelet makes one for each NUMA node
                let own = own.filter(|it| it.resource_name == resource);
                for id in own.flat_map(|it| &it.device_ids) {
                    ids.insert(id);
                    for address in devices_of(id) {
                        if is_shared {
                            shared.insert(address.clone());
                        }
                        held.holders.entry(address).or_default().insert(Holder {
                            resource: resource.to_owned(),
                            container: PodContainer::new(pod, container),
                        });
                    }
                }
            }
        }
        held.allocated.insert(resource.to_owned(), ids.len() as u64);
    }
    let alone = held
        .holders
        .iter()
        .filter(|(address, holders)| holders.len() == 1 && !shared.contains(*address));
    held.only = alone
        .filter_map(|(address, holders)| Some((address.clone(), holders.first()?.clone())))
        .collect();
    held
}
