// SPDX-License-Identifier: Apache-2.0
//! Which container has which device, and how many ids of each resource are given.

use crate::{offer::Offer, refused::PodName};
use kubelet_api::pod_resources::v1::PodResources;
use rdma_netns::DeviceAddress;
use rdma_resources::{Grants, Sharing};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// A container that was given a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    pub(crate) resource: String,
    pub(super) pod: String,
    pub(super) namespace: String,
    pub(super) container: String,
}

impl Holder {
    /// Whose container it is.
    pub(crate) fn pod_name(&self) -> PodName {
        PodName {
            namespace: self.namespace.clone(),
            name: self.pod.clone(),
        }
    }
}

/// What kubelet has given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Ids, by resource.
    pub(super) allocated: BTreeMap<String, u64>,
    /// Who has a device.
    pub(crate) holders: BTreeMap<DeviceAddress, BTreeSet<Holder>>,
    /// Who has one alone.
    pub(super) only: BTreeMap<DeviceAddress, Holder>,
}

/// What kubelet's list says of resources with their offers, if there is anything left of them, by what was given for each id as `state_dir` has it: a file for each, which is
/// no work for the thread that answers kubelet.
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

/// What kubelet's list says of `offers`. `granted` are the devices that were given for an id of a
/// resource, where that is known; else it is what the id stands for now.
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
        let stands_for: BTreeMap<&str, &[usize]> = ids
            .map(|it| (it.id.as_str(), it.devices.as_slice()))
            .collect();
        let offered = |id: &str| {
            let places = stands_for.get(id).copied().unwrap_or_default().iter();
            let devices = places.filter_map(|place| offer?.devices.get(*place));
            devices.map(|it| it.address.clone()).collect()
        };
        let mut ids = BTreeSet::new();
        for pod in pods {
            for container in &pod.containers {
                let own = container.devices.iter();
                // one entry for each NUMA node: an id can be in several
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
