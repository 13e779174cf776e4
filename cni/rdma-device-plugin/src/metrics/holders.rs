// SPDX-License-Identifier: Apache-2.0
//! Finds the containers of each device, and counts the allocated ids of each resource.

use crate::refused::PodName;
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
    pub(super) pod: String,
    pub(super) namespace: String,
    pub(super) container: String,
}

impl Holder {
    pub(crate) fn pod_name(&self) -> PodName {
        PodName {
            namespace: self.namespace.clone(),
            name: self.pod.clone(),
        }
    }
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
/// `None` if the resource is no longer offered. The grants in `state_dir` show the devices of each id.
///
/// Reads a file for each allocated id. The caller must therefore not be the thread that answers kubelet.
pub(crate) fn held<'a>(
    pods: &[PodResources],
    offers: impl IntoIterator<Item = (&'a str, Option<&'a Offer>)>,
    state_dir: &Path,
) -> Held {
    let grants = Grants::new(state_dir);
    held_by(pods, offers, |resource, id| {
        let grant = grants.read(resource, id).ok().flatten()?;
        Some(grant.devices.into_iter().map(|it| it.address).collect())
    })
}

/// Counts the ids of `offers` that kubelet has allocated, and finds their containers. `granted` returns the granted
/// devices of a resource's id. For an id without a grant, uses the id's present devices.
fn held_by<'a>(
    pods: &[PodResources],
    offers: impl IntoIterator<Item = (&'a str, Option<&'a Offer>)>,
    granted: impl Fn(&str, &str) -> Option<Vec<DeviceAddress>>,
) -> Held {
    let mut held = Held::default();
    let mut shared = BTreeSet::new();
    for (resource, offer) in offers {
        let is_shared = offer.is_none_or(|it| it.sharing == Sharing::Shared);
        let ids = offer.into_iter().flat_map(|it| &it.ids);
        let devices_of: BTreeMap<&str, &[usize]> = ids
            .map(|it| (it.id.as_str(), it.devices.as_slice()))
            .collect();
        let offered = |id: &str| {
            let places = devices_of.get(id).copied().unwrap_or_default().iter();
            let devices = places.filter_map(|place| offer?.devices.get(*place));
            devices.map(|it| it.address.clone()).collect()
        };
        let mut ids = BTreeSet::new();
        for pod in pods {
            for container in &pod.containers {
                let own = container.devices.iter();
                // an id can be in several elements of `devices`, because kubelet makes one for each NUMA node
                let own = own.filter(|it| it.resource_name == resource);
                for id in own.flat_map(|it| &it.device_ids) {
                    ids.insert(id);
                    let devices = granted(resource, id).unwrap_or_else(|| offered(id));
                    for address in devices {
                        if is_shared {
                            shared.insert(address.clone());
                        }
                        held.holders.entry(address).or_default().insert(Holder {
                            resource: resource.to_owned(),
                            pod: pod.name.clone(),
                            namespace: pod.namespace.clone(),
                            container: container.name.clone(),
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
