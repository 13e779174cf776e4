// SPDX-License-Identifier: Apache-2.0
//! Resolves kubelet's allocation to the devices of a pod: first the ids, then the devices of each id. This module is
//! pure: its callers query kubelet and read the files.

use attachments::{Allocated, Id};
use dra::{Prepared, Record, cdi};
use kubelet_api::pod_resources::v1::PodResources;
use rdma_netns::{Device, DeviceAddress};
use rdma_resources::{CharNode, Grant, Published, Resource, Sharing, grant::GrantedDevice};

/// An id of kubelet's allocation, resolved to devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// The id that kubelet allocated.
    pub id: Id,
    /// The sharing mode: one pod or several pods may use the devices.
    pub sharing: Sharing,
    /// The devices of the id.
    pub devices: Named,
    /// True if the container gets the devices by their CDI names from the daemon's answer to Allocate.
    pub cdi: bool,
    /// The record of the claim through which the scheduler allocated the devices. `None`: kubelet allocated the devices
    /// through a device plugin.
    pub claim: Option<Record>,
}

/// A device of a claim that the pod uses, as kubelet reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimDevice {
    /// Name of the DRA driver.
    pub driver: String,
    /// The claim's uid.
    pub uid: String,
    /// Name of the device in the driver's pool.
    pub device: String,
}

/// Devices by address, or an RDMA device by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// The devices. A device of an id without a grant has neither character devices nor a name of its RDMA device.
    Devices(Vec<GrantedDevice>),
    /// Name of the RDMA device, for an id that names only this device.
    Rdma(String),
}

/// A device with its netdev, and with all ids by which kubelet allocated the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allotment {
    /// The device.
    pub address: DeviceAddress,
    /// The netdev to which the pod is attached: the device's own netdev, its bond, or a VLAN on one of these. `None`:
    /// the resource names no netdev for the device, so the pod is attached to the device's own netdev or its bond.
    pub parent: Option<String>,
    /// The sharing mode: one pod or several pods may use the device.
    pub sharing: Sharing,
    /// Resource, ids and containers' access, for the attachment's record.
    pub allocated: Allocated,
}

/// An id that leads to no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// No file of the daemon describes the id, and the id's own text names no device.
    #[error(
        "the device of {0}, which kubelet allocated to this pod, is unknown: rdma-device-plugin has no record of it in \
         stateDir (granted/, resources.json); check that the daemon runs on this node with the same state directory, \
         and that the resource is one of the daemon's resources"
    )]
    Unrecorded(Id),
    /// A file of the daemon describes the id, but lists no device for it.
    #[error(
        "{0}, which kubelet allocated to this pod, has no device: check the resource in rdma-device-plugin's \
         configuration"
    )]
    Nothing(Id),
    /// The id names an RDMA device that does not exist.
    #[error("{id} is the id of RDMA device {rdma}, which this node does not have")]
    NoRdmaDevice {
        /// The id.
        id: Id,
        /// Name of the RDMA device.
        rdma: String,
    },
}

/// Returns the ids of `resources` that the pod's containers have, in the order of `resources`, then by length and text.
/// Removes duplicates: several containers can have the same id, and kubelet lists a resource once for each NUMA node.
pub fn ids(pod: &PodResources, resources: &[String]) -> Vec<Id> {
    let devices = || pod.containers.iter().flat_map(|it| &it.devices);
    let mut found: Vec<Id> = vec![];
    for resource in resources {
        let own = devices().filter(|it| it.resource_name == *resource);
        let mut ids: Vec<&String> = vec![];
        for id in own.flat_map(|it| &it.device_ids) {
            let place = ids.binary_search_by_key(&(id.len(), id), |it| (it.len(), *it));
            if let Err(place) = place {
                ids.insert(place, id);
            }
        }
        found.extend(ids.into_iter().map(|id| Id {
            resource: resource.clone(),
            id: id.clone(),
        }));
    }
    found
}

/// Returns the devices of claims that the pod's containers use, without duplicates. Omits devices of other DRA drivers,
/// because their CDI names have another format.
pub fn claims(pod: &PodResources) -> Vec<ClaimDevice> {
    let resources = pod.containers.iter().flat_map(|it| &it.dynamic_resources);
    let mut found: Vec<ClaimDevice> = vec![];
    for resource in resources.flat_map(|it| &it.claim_resources) {
        let mut names = resource.cdi_devices.iter();
        let uid = names.find_map(|it| cdi::uid(&resource.driver_name, &it.name));
        let device = uid.map(|uid| ClaimDevice {
            driver: resource.driver_name.clone(),
            uid: uid.to_owned(),
            device: resource.device_name.clone(),
        });
        found.extend(device.filter(|device| !found.contains(device)));
    }
    found
}

/// Returns the devices that a claim's record lists as prepared.
pub fn of_record(record: &Record) -> impl Iterator<Item = ClaimDevice> {
    record.devices.iter().map(|device| ClaimDevice {
        driver: record.driver.clone(),
        uid: record.claim.uid.clone(),
        device: device.device.clone(),
    })
}

/// Returns an id for the claim's prepared `device`.
pub fn id_of(record: &Record, device: &Prepared) -> Id {
    Id {
        resource: device.resource.clone(),
        id: format!("{}/{}", record.claim, device.device),
    }
}

/// Resolves a claim's device by the claim's record. Returns `None` if the record does not list the device, or if the
/// device belongs to none of `resources`.
pub fn of_claim(device: &ClaimDevice, record: &Record, resources: &[String]) -> Option<Meaning> {
    let is_it = |it: &&Prepared| it.device == device.device && resources.contains(&it.resource);
    let prepared = record.devices.iter().find(is_it)?;
    Some(Meaning {
        id: id_of(record, prepared),
        sharing: prepared.sharing,
        devices: Named::Devices(prepared.nics.clone()),
        cdi: false,
        claim: Some(record.clone()),
    })
}

/// Resolves `id` to `devices` of `resource`, which the daemon published.
pub fn of_published(id: Id, resource: &Resource, devices: &[DeviceAddress]) -> Meaning {
    let parent = |it: &DeviceAddress| resource.parents.get(it).cloned();
    let devices = devices.iter();
    let devices = devices.map(|it| without_grant(it.clone(), parent(it)));
    Meaning {
        id,
        sharing: resource.sharing,
        devices: Named::Devices(devices.collect()),
        cdi: false,
        claim: None,
    }
}

fn without_grant(address: DeviceAddress, parent: Option<String>) -> GrantedDevice {
    GrantedDevice {
        address,
        rdma: String::new(),
        parent,
        char_devices: vec![],
    }
}

/// Resolves `id` to its devices, by the first of these sources that has the id:
///
/// 1. the id's grant
/// 2. the resource that the daemon published
/// 3. the id's own text
pub fn meaning(
    id: &Id,
    grant: Option<Grant>,
    published: Option<&Published>,
) -> Result<Meaning, AllocationError> {
    let of = |sharing, devices, cdi| Meaning {
        id: id.clone(),
        sharing,
        devices,
        cdi,
        claim: None,
    };
    let some = |meaning: Meaning| match &meaning.devices {
        Named::Devices(devices) if devices.is_empty() => Err(AllocationError::Nothing(id.clone())),
        _ => Ok(meaning),
    };
    if let Some(grant) = grant {
        return some(of(grant.sharing, Named::Devices(grant.devices), grant.cdi));
    }
    let resource = published.and_then(|it| it.resources.get(&id.resource));
    if let Some((resource, devices)) = resource.and_then(|it| Some((it, it.devices(&id.id)?))) {
        return some(of_published(id.clone(), resource, devices));
    }
    if let Ok(address) = DeviceAddress::try_from(id.id.clone()) {
        let devices = Named::Devices(vec![without_grant(address, None)]);
        return Ok(of(Sharing::Exclusive, devices, false));
    }
    match id.id.rsplit_once('/') {
        // the eRDMA controller's ids consist of RDMA device and number
        Some((rdma, number)) if is_name(rdma) && is_number(number) => {
            Ok(of(Sharing::Shared, Named::Rdma(rdma.to_owned()), false))
        }
        _ => Err(AllocationError::Unrecorded(id.clone())),
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains('/')
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Returns the devices of `meanings`. Returns a device once for each of its parent netdevs. The order is by resource as
/// in `meanings`, then by address: the order of a resource's ids has no effect. `devices` are the node's devices.
pub fn devices(
    meanings: &[Meaning],
    devices: &[Device],
) -> Result<Vec<Allotment>, AllocationError> {
    let mut allotments: Vec<Allotment> = vec![];
    for same_resource in meanings.chunk_by(|a, b| a.id.resource == b.id.resource) {
        let mut found: Vec<(GrantedDevice, &Meaning)> = vec![];
        for meaning in same_resource {
            for device in found_by(meaning, devices)? {
                let place = found.partition_point(|(it, _)| it.address <= device.address);
                found.insert(place, (device, meaning));
            }
        }
        for (device, meaning) in found {
            let is_it = |it: &Allotment| it.address == device.address && it.parent == device.parent;
            let known = allotments.iter().position(is_it);
            let index = known.unwrap_or_else(|| {
                allotments.push(Allotment {
                    parent: device.parent,
                    address: device.address,
                    sharing: meaning.sharing,
                    allocated: Allocated::default(),
                });
                allotments.len() - 1
            });
            allotments[index].add(meaning, device.char_devices);
        }
    }
    Ok(allotments)
}

impl Allotment {
    /// Returns the name of the first resource that contains the device.
    pub(crate) fn resource(&self) -> String {
        let first = self.allocated.ids.first();
        first.map(|it| it.resource.clone()).unwrap_or_default()
    }

    fn add(&mut self, meaning: &Meaning, char_devices: Vec<CharNode>) {
        if meaning.sharing == Sharing::Shared {
            // a device that is shared by one of its resources cannot be exclusive
            self.sharing = Sharing::Shared;
        }
        self.allocated.ids.push(meaning.id.clone());
        if meaning.claim.is_some() {
            // after a move, `rdma-cni` updates the claim's own CDI specification
            return;
        }
        self.allocated.cdi |= meaning.cdi;
        let known = match meaning.cdi {
            true => &mut self.allocated.by_name,
            false => &mut self.allocated.by_path,
        };
        for node in char_devices {
            if !known.contains(&node) {
                known.push(node);
            }
        }
    }
}

fn found_by(meaning: &Meaning, devices: &[Device]) -> Result<Vec<GrantedDevice>, AllocationError> {
    match &meaning.devices {
        Named::Devices(devices) => Ok(devices.clone()),
        Named::Rdma(name) => {
            let has_it = |device: &&Device| device.rdma.contains(name);
            let device = devices.iter().find(has_it);
            let device = device.ok_or_else(|| AllocationError::NoRdmaDevice {
                id: meaning.id.clone(),
                rdma: name.clone(),
            })?;
            Ok(vec![without_grant(device.address.clone(), None)])
        }
    }
}

#[cfg(test)]
#[path = "allocation_tests.rs"]
mod tests;
