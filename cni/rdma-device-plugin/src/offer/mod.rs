// SPDX-License-Identifier: Apache-2.0
//! What a node offers to kubelet: a pure function of configuration, hardware and health.
//!
//! | module | owns |
//! |---|---|
//! | `select` | which devices a resource has |
//! | `parent` | the netdev that pods are attached to, where a resource says which |
//! | `previous` | those that it had before, of which less is seen while they are in a pod |
//! | `unnamed` | what a resource has only if it names it |
//! | `required` | whether a resource has the devices that it has to have |
//! | `ids` | what each id stands for |
//! | `answer` | what a container gets for ids |
//! | `environment` | variables for libraries |
//! | `granted` | whether it still would get the same |
//! | `prefer`, `accelerators`, `distance` | which ids kubelet had better allocate |
//! | `cdi` | CDI entries |
//! | `table` | all of it for people |

mod accelerators;
mod answer;
mod cdi;
pub mod distance;
mod environment;
mod granted;
mod ids;
mod parent;
mod prefer;
mod previous;
mod required;
mod select;
mod table;
mod unnamed;

pub use accelerators::Accelerators;
pub use answer::{AnswerError, Given};
pub use cdi::cdi_entries;
pub use environment::Environment;
pub use granted::{Stale, still_as_granted};
pub use prefer::Preference;
pub use previous::{Gone, PreviousOffers, physical_functions};
pub(crate) use select::selects;
pub(crate) use table::columns;
pub use table::table;

use crate::conf::{Allocate, Conf, Ids, MOST_IDS, ResourceConf, ResourceName};
use kubelet_api::device_plugin::{Device, HEALTHY, NumaNode, TopologyInfo, UNHEALTHY};
use rdma_netns::{DeviceAddress, Hca, Inventory, PciPath};
use rdma_resources::{Resource, Sharing, published::Devices};
use std::collections::{BTreeMap, BTreeSet};

/// One resource as it is advertised.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// The resource.
    pub name: ResourceName,
    /// How its ids are made.
    pub kind: Ids,
    /// Whether an id's devices are one pod's alone.
    pub sharing: Sharing,
    /// Its devices, by address.
    pub devices: Vec<OfferedDevice>,
    /// Its ids, in the order in which they are advertised.
    pub ids: Vec<OfferedId>,
    /// Whether it says which netdev of a device pods are attached to.
    pub has_parents: bool,
    /// Whether containers get devices by CDI names.
    pub cdi: bool,
    /// Whether containers get `umad` and `issm` too.
    pub umad: bool,
    /// How containers' environment is set up.
    pub environment: Environment,
    /// How many devices it is to have: what it has to have by its configuration, else as many as it had.
    pub expected: usize,
    /// Why no id of it is healthy, where it has fewer devices than it has to have.
    pub short: Option<String>,
}

/// A device of a resource.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferedDevice {
    /// Its PCI function or auxiliary device.
    pub address: DeviceAddress,
    /// Its RDMA device.
    pub hca: Hca,
    /// NUMA node; none: not known.
    pub numa_node: Option<u32>,
    /// Where on PCI it is.
    pub path: PciPath,
    /// Where on PCI its Data Direct function is.
    pub data_direct: Option<PciPath>,
    /// Hardware address of its netdev, as it was last seen in this namespace.
    pub mac: Option<String>,
    /// The netdev that pods are attached to, if the resource says which.
    pub parent: Option<String>,
    /// Why it is not healthy, if it is not: no container gets it then.
    pub fault: Option<String>,
}

/// An id of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedId {
    /// What kubelet calls it.
    pub id: String,
    /// What it stands for: places in [`Offer::devices`].
    pub devices: Vec<usize>,
    /// NUMA nodes of its devices; none: not known, or that of all of them would say nothing.
    pub numa_nodes: Vec<u32>,
    /// Whether kubelet may allocate it.
    pub healthy: bool,
}

/// Devices that are not healthy, each with the reason.
pub type Unhealthy = BTreeMap<DeviceAddress, String>;

/// What a node has to offer, and what in the configuration came to nothing, in words.
///
/// `previous` is what was offered before: a device in a pod shows too little of itself to be
/// selected by its netdev, and stays what it was. A device of a resource that has lost its
/// RDMA device stays in it, and is as healthy as `unhealthy` says: a move makes the RDMA device
/// anew, which takes a moment. A resource without any device is not offered. What is `hidden` is in
/// no resource.
pub fn offers(
    conf: &Conf,
    inventory: &Inventory,
    hidden: &BTreeSet<DeviceAddress>,
    unhealthy: &Unhealthy,
    previous: &PreviousOffers,
) -> (Vec<Offer>, Vec<String>) {
    let mut remarks = Vec::new();
    let mut taken = BTreeMap::new();
    let mut offers = Vec::new();
    for resource in &conf.resources {
        let mut devices = select::devices(
            resource,
            inventory,
            previous,
            conf.chain.is_some(),
            &mut remarks,
        );
        devices.retain(|device| {
            let is_hidden = hidden.contains(&device.address);
            if is_hidden {
                remarks.push(format!(
                    "{}: {} ({}) is not in {}, as erdma.exposedLocalERIs does not have it",
                    resource.place, device.address, device.hca.name, resource.name
                ));
            }
            !is_hidden
        });
        if resource.ids == Ids::Exclusive {
            let of_bond = |address: &DeviceAddress| {
                let function = inventory.function(address)?;
                let mut others = taken.iter();
                others.find_map(|(other, resource)| {
                    select::common_bond(function, inventory.function(other)?).map(|_| *resource)
                })
            };
            devices.retain(|device| {
                let own = taken.get(&device.address).copied();
                let other = own.or_else(|| of_bond(&device.address));
                remarks.extend(other.map(|other| {
                    format!(
                        "{}: {} is in {other} already, and not in {}",
                        resource.place, device.address, resource.name
                    )
                }));
                other.is_none()
            });
            let own = devices.iter().map(|device| device.address.clone());
            taken.extend(own.map(|address| (address, &resource.name)));
        }
        if !resource.parents.is_empty() && conf.by_claims(&resource.name) {
            remarks.push(format!(
                "{}.parents is not for what claims allocate, as {} is until the daemon is started anew: it is not \
                 offered",
                resource.place, resource.name
            ));
            continue;
        }
        if devices.is_empty() {
            remarks.push(format!(
                "{}: {}, so {} is not offered",
                resource.place,
                select::nothing(resource),
                resource.name
            ));
            continue;
        }
        let kind = limited(resource, devices.len(), &mut remarks);
        let gone = previous.gone(resource.name.as_str(), inventory);
        let cdi = conf.cdi || conf.by_claims(&resource.name);
        remarks.extend(devices.iter().filter_map(|device| {
            let fault = device.fault.as_ref()?;
            Some(format!(
                "{}: {} ({}) cannot be used by {}: {fault}",
                resource.place, device.address, device.hca.name, resource.name
            ))
        }));
        let mut offer = offer(resource, kind, cdi, (devices, &gone), unhealthy);
        offer.environment = Environment::of(resource, conf);
        remarks.extend(offer.short.clone());
        offers.push(offer);
    }
    if offers.is_empty() && inventory.functions.iter().all(|it| it.hcas.is_empty()) {
        let nothing = "this node has no RDMA devices: nothing is offered until there are some";
        return (offers, vec![nothing.to_owned()]);
    }
    remarks.extend(twofold(&offers));
    (offers, remarks)
}

/// How the resource's ids are made, such that kubelet takes the list.
fn limited(resource: &ResourceConf, devices: usize, remarks: &mut Vec<String>) -> Ids {
    let Ids::PerNic { count, allocate } = resource.ids else {
        return resource.ids;
    };
    let devices = u32::try_from(devices).unwrap_or(u32::MAX);
    let most = MOST_IDS / devices.max(1);
    if count > most {
        remarks.push(format!(
            "{}: {} has {most} ids a NIC instead of {count}: kubelet takes no list of more than \
             {MOST_IDS}, and there are {devices} NICs",
            resource.place, resource.name
        ));
    }
    Ids::PerNic {
        count: count.min(most),
        allocate,
    }
}

fn offer(
    resource: &ResourceConf,
    kind: Ids,
    cdi: bool,
    (mut devices, gone): (Vec<OfferedDevice>, &[Gone]),
    unhealthy: &Unhealthy,
) -> Offer {
    for device in &mut devices {
        let own = unhealthy.get(&device.address).cloned();
        device.fault = own.or(device.fault.take());
    }
    let expected = required::expected(resource.require, &devices, gone);
    let short = required::short(resource, &devices, gone);
    let is_healthy = |device: &OfferedDevice| short.is_none() && device.fault.is_none();
    let mut ids = ids::ids(kind, &devices, &is_healthy);
    if !resource.topology {
        for id in &mut ids {
            id.numa_nodes.clear();
        }
    }
    Offer {
        name: resource.name.clone(),
        kind,
        sharing: match kind {
            Ids::Exclusive => Sharing::Exclusive,
            Ids::Shared { .. } | Ids::PerNic { .. } => Sharing::Shared,
        },
        devices,
        ids,
        has_parents: !resource.parents.is_empty(),
        cdi,
        umad: resource.umad,
        environment: Environment::default(),
        expected,
        short,
    }
}

/// Devices that one pod may have for itself, and others share.
fn twofold(offers: &[Offer]) -> Option<String> {
    let of = |sharing| {
        let offers = offers.iter().filter(move |offer| offer.sharing == sharing);
        offers.flat_map(|offer| offer.devices.iter().map(|device| &device.address))
    };
    let shared: BTreeSet<&DeviceAddress> = of(Sharing::Shared).collect();
    let both: Vec<&str> = of(Sharing::Exclusive)
        .filter(|address| shared.contains(*address))
        .map(|address| &**address)
        .collect();
    (!both.is_empty()).then(|| {
        format!(
            "{} can be one pod's alone and, by another resource, be shared with it; select them \
             for one resource only",
            both.join(", ")
        )
    })
}

impl Offer {
    /// Its ids as kubelet is told them, always all.
    pub fn list(&self) -> Vec<Device> {
        let device = |id: &OfferedId| Device {
            id: id.id.clone(),
            health: if id.healthy { HEALTHY } else { UNHEALTHY }.to_owned(),
            topology: (!id.numa_nodes.is_empty()).then(|| TopologyInfo {
                nodes: id
                    .numa_nodes
                    .iter()
                    .map(|node| NumaNode {
                        id: i64::from(*node),
                    })
                    .collect(),
            }),
        };
        self.ids.iter().map(device).collect()
    }

    /// Whether it makes a difference which ids a container has.
    pub fn has_choice(&self) -> bool {
        let mut ids = self.ids.iter();
        let first = ids.next();
        first.is_some_and(|first| ids.any(|id| id.devices != first.devices))
    }

    /// How many of its devices can be used.
    pub(crate) fn usable(&self) -> usize {
        self.devices.iter().filter(|it| it.fault.is_none()).count()
    }

    /// Its devices that are not `unhealthy` and cannot be used by it all the same, each with the reason: their netdev
    /// that pods are attached to is missing or down.
    pub(crate) fn own_faults(&self, unhealthy: &Unhealthy) -> Vec<(String, String)> {
        let own = self.devices.iter();
        let own = own.filter(|it| !unhealthy.contains_key(&it.address));
        own.filter_map(|it| {
            Some((
                format!("{} in {}", it.hca.name, self.name),
                it.fault.clone()?,
            ))
        })
        .collect()
    }

    /// What its ids stand for, for the chain. A device without the netdev that pods are to be attached to is left
    /// out.
    pub fn published(&self) -> Resource {
        let can_be_attached = |it: &&OfferedDevice| !self.has_parents || it.parent.is_some();
        let address = |index: &usize| {
            let device = self.devices.get(*index).filter(can_be_attached);
            device.map(|it| it.address.clone())
        };
        let all = self.devices.iter().filter(can_be_attached);
        let devices = match self.kind {
            Ids::Shared {
                allocate: Allocate::All,
                ..
            } => Devices::Every(all.map(|it| it.address.clone()).collect()),
            _ => Devices::ById(
                self.ids
                    .iter()
                    .map(|id| {
                        (
                            id.id.clone(),
                            id.devices.iter().filter_map(address).collect(),
                        )
                    })
                    .collect(),
            ),
        };
        let parents = self.devices.iter();
        let parents = parents.filter_map(|it| Some((it.address.clone(), it.parent.clone()?)));
        Resource {
            sharing: self.sharing,
            devices,
            parents: parents.collect(),
        }
    }
}
