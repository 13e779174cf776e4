// SPDX-License-Identifier: Apache-2.0
//! From what kubelet allocated to the devices of a pod: ids first, then what they stand for.
//! Pure; `rdma-cni` asks kubelet and reads the files.

use attachments::{Allocated, Id};
use dra::{AttachmentParameters, Prepared, Record, cdi};
use kubelet_api::pod_resources::v1::PodResources;
use rdma_netns::{Device, DeviceAddress};
use rdma_resources::{CharNode, Grant, Published, Sharing};
use std::collections::BTreeMap;

/// What an id stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// The id.
    pub id: Id,
    /// Whether the devices are one pod's alone.
    pub sharing: Sharing,
    /// The devices.
    pub devices: Named,
    /// The netdev that the pod is attached to, of each device where the resource says which.
    pub parents: BTreeMap<DeviceAddress, String>,
    /// How containers get them, where that is recorded.
    pub given: Vec<Given>,
    /// The claim that they were allocated by; none: kubelet's device plugins.
    pub claim: Option<AllocatingClaim>,
}

/// A claim that devices were allocated by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatingClaim {
    /// Its uid.
    pub uid: String,
    /// What it says of how its pod is attached.
    pub parameters: AttachmentParameters,
}

/// A device of a claim that the pod uses, as kubelet tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimDevice {
    /// Its driver.
    pub driver: String,
    /// The claim's uid.
    pub uid: String,
    /// Its name in the driver's pool.
    pub device: String,
}

/// Devices, by what is known of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// By address.
    Addresses(Vec<DeviceAddress>),
    /// By the name of an RDMA device.
    Rdma(String),
}

/// How a device is given to a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The device.
    pub address: DeviceAddress,
    /// Whether by its CDI name.
    pub cdi: bool,
    /// Its character devices then.
    pub char_devices: Vec<CharNode>,
}

/// A device that is the pod's at one netdev, with all ids that stand for that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allotment {
    /// The device.
    pub address: DeviceAddress,
    /// The netdev that the pod is attached to: the device's own, its bond, or a VLAN of that. None: as the device
    /// has it.
    pub parent: Option<String>,
    /// Whether other pods have it too.
    pub sharing: Sharing,
    /// What the record says of it.
    pub allocated: Allocated,
}

/// An id that leads to no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// Nobody has recorded it, and it names no device itself.
    #[error(
        "nothing says which device {0} is, that kubelet allocated to this pod: \
         rdma-device-plugin has not recorded it in stateDir (granted/, resources.json); check \
         that it runs on this node with the same state directory, or that the resource is its"
    )]
    Unrecorded(Id),
    /// It is recorded, as that of no device.
    #[error(
        "{0}, that kubelet allocated to this pod, stands for no device: check the resource in \
         rdma-device-plugin's configuration"
    )]
    Nothing(Id),
    /// It names an RDMA device that is not there.
    #[error("there is no RDMA device {rdma} on this node, which {id} stands for")]
    NoRdmaDevice {
        /// The id.
        id: Id,
        /// Its name.
        rdma: String,
    },
}

/// The ids of `resources` that the pod's containers have, each once, in the order of
/// `resources`. Containers can have the same one; kubelet lists a resource once for each NUMA node.
pub fn ids(pod: &PodResources, resources: &[String]) -> Vec<Id> {
    let devices = || pod.containers.iter().flat_map(|it| &it.devices);
    let mut found: Vec<Id> = vec![];
    for resource in resources {
        let own = devices().filter(|it| it.resource_name == *resource);
        let mut ids: Vec<&String> = own.flat_map(|it| &it.device_ids).collect();
        ids.sort_by_key(|id| (id.len(), *id));
        ids.dedup();
        found.extend(ids.into_iter().map(|id| Id {
            resource: resource.clone(),
            id: id.clone(),
        }));
    }
    found
}

/// The devices of claims that the pod's containers use, each once. Those of other drivers, which name what a
/// container gets otherwise, are left out.
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

/// The devices of a claim, by what it was prepared with.
pub fn of_record(record: &Record) -> impl Iterator<Item = ClaimDevice> {
    record.devices.iter().map(|device| ClaimDevice {
        driver: record.driver.clone(),
        uid: record.claim.uid.clone(),
        device: device.device.clone(),
    })
}

/// What a device of a claim stands for, by what the claim was prepared with. None: it is no device of `resources`.
pub fn of_claim(device: &ClaimDevice, record: &Record, resources: &[String]) -> Option<Meaning> {
    let is_it = |it: &&Prepared| it.device == device.device && resources.contains(&it.resource);
    let prepared = record.devices.iter().find(is_it)?;
    let addresses = prepared.nics.iter().map(|nic| nic.address.clone());
    Some(Meaning {
        id: Id {
            resource: prepared.resource.clone(),
            id: format!("{}/{}", record.claim, device.device),
        },
        sharing: prepared.sharing,
        devices: Named::Addresses(addresses.collect()),
        parents: BTreeMap::new(),
        // the claim's own specification follows a move
        given: vec![],
        claim: Some(AllocatingClaim {
            uid: device.uid.clone(),
            parameters: record.parameters.clone(),
        }),
    })
}

/// What `id` stands for: as it was granted, else as the daemon publishes it, else as it reads by
/// itself.
pub fn meaning(
    id: &Id,
    grant: Option<Grant>,
    published: Option<&Published>,
) -> Result<Meaning, AllocationError> {
    let of = |sharing, devices, given| Meaning {
        id: id.clone(),
        sharing,
        devices,
        parents: BTreeMap::new(),
        given,
        claim: None,
    };
    let some = |addresses: Vec<DeviceAddress>| match addresses.is_empty() {
        true => Err(AllocationError::Nothing(id.clone())),
        false => Ok(Named::Addresses(addresses)),
    };
    if let Some(grant) = grant {
        let addresses = grant.devices.iter().map(|it| it.address.clone());
        let addresses = some(addresses.collect())?;
        let parents = grant.devices.iter();
        let parents = parents.filter_map(|it| Some((it.address.clone(), it.parent.clone()?)));
        let parents = parents.collect();
        let given = grant.devices.into_iter().map(|device| Given {
            address: device.address,
            cdi: grant.cdi,
            char_devices: device.char_devices,
        });
        return Ok(Meaning {
            parents,
            ..of(grant.sharing, addresses, given.collect())
        });
    }
    let resource = published.and_then(|it| it.resources.get(&id.resource));
    if let Some((resource, devices)) = resource.and_then(|it| Some((it, it.devices(&id.id)?))) {
        return Ok(Meaning {
            parents: resource.parents.clone(),
            ..of(resource.sharing, some(devices.to_vec())?, vec![])
        });
    }
    if let Ok(address) = DeviceAddress::try_from(id.id.clone()) {
        let devices = Named::Addresses(vec![address]);
        return Ok(of(Sharing::Exclusive, devices, vec![]));
    }
    match id.id.rsplit_once('/') {
        // as the eRDMA controller numbers a NIC's ids
        Some((rdma, number)) if is_name(rdma) && is_number(number) => {
            Ok(of(Sharing::Shared, Named::Rdma(rdma.to_owned()), vec![]))
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

/// The devices that `meanings` are about, each once for each netdev that the pod is attached to: in the order of the
/// resources, then by address, so that rails are numbered the same each time. `devices` are the node's, with all that have
/// an RDMA device.
pub fn devices(
    meanings: &[Meaning],
    devices: &[Device],
) -> Result<Vec<Allotment>, AllocationError> {
    let mut allotments: Vec<Allotment> = vec![];
    for same_resource in meanings.chunk_by(|a, b| a.id.resource == b.id.resource) {
        let mut found = vec![];
        for meaning in same_resource {
            let addresses = addresses(meaning, devices)?;
            found.extend(addresses.into_iter().map(|address| (address, meaning)));
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (address, meaning) in found {
            let parent = meaning.parents.get(&address);
            let is_it = |it: &Allotment| it.address == address && it.parent.as_ref() == parent;
            let known = allotments.iter().position(is_it);
            let index = known.unwrap_or_else(|| {
                allotments.push(Allotment {
                    parent: parent.cloned(),
                    address,
                    sharing: meaning.sharing,
                    allocated: Allocated::default(),
                });
                allotments.len() - 1
            });
            allotments[index].add(meaning);
        }
    }
    Ok(allotments)
}

impl Allotment {
    /// The first of the resources that it is of.
    pub(crate) fn resource(&self) -> String {
        let first = self.allocated.ids.first();
        first.map(|it| it.resource.clone()).unwrap_or_default()
    }

    fn add(&mut self, meaning: &Meaning) {
        if meaning.sharing == Sharing::Shared {
            // what one resource shares, another one cannot have for one pod alone
            self.sharing = Sharing::Shared;
        }
        self.allocated.ids.push(meaning.id.clone());
        let given = meaning.given.iter().filter(|it| it.address == self.address);
        for given in given {
            self.allocated.cdi |= given.cdi;
            let known = match given.cdi {
                true => &mut self.allocated.by_name,
                false => &mut self.allocated.by_path,
            };
            for node in &given.char_devices {
                if !known.contains(node) {
                    known.push(node.clone());
                }
            }
        }
    }
}

fn addresses(meaning: &Meaning, devices: &[Device]) -> Result<Vec<DeviceAddress>, AllocationError> {
    match &meaning.devices {
        Named::Addresses(addresses) => Ok(addresses.clone()),
        Named::Rdma(name) => {
            let has_it = |device: &&Device| device.rdma.contains(name);
            let device = devices.iter().find(has_it);
            let device = device.ok_or_else(|| AllocationError::NoRdmaDevice {
                id: meaning.id.clone(),
                rdma: name.clone(),
            })?;
            Ok(vec![device.address.clone()])
        }
    }
}

#[cfg(test)]
#[path = "allocation_tests.rs"]
mod tests;
